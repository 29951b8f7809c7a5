import com.typesafe.config.Config;
import com.typesafe.config.ConfigFactory;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.pekko.actor.typed.ActorSystem;
import org.apache.pekko.persistence.jdbc.query.javadsl.JdbcReadJournal;
import org.apache.pekko.persistence.jdbc.testkit.javadsl.SchemaUtils;
import org.apache.pekko.persistence.query.EventEnvelope;
import org.apache.pekko.persistence.query.Offset;
import org.apache.pekko.persistence.query.PersistenceQuery;
import org.apache.pekko.stream.javadsl.Sink;

/** pekko-persistence-jdbc on PostgreSQL. */
public class Jdbc implements Journal.Plugin {
  public static void main(String[] arguments) throws Exception {
    Journal.run(new Jdbc(), arguments);
  }

  /** The tags of each event that has some, by its entity and number. */
  private Map<String, Set<String>> tags;

  @Override
  public Config config(String host, String port, String database, String user) {
    String url = "jdbc:postgresql://" + host + ":" + port + "/" + database;
    String text =
        """
        pekko.loglevel = OFF
        pekko.stdout-loglevel = OFF
        pekko.log-dead-letters = off
        pekko.actor.serialization-bindings {
          "Journal$AsJson" = jackson-json
          "Journal$AsCbor" = jackson-cbor
        }
        pekko.persistence.journal.plugin = jdbc-journal
        pekko.persistence.snapshot-store.plugin = jdbc-snapshot-store
        jdbc-journal.use-shared-db = slick
        jdbc-snapshot-store.use-shared-db = slick
        jdbc-read-journal.use-shared-db = slick
        pekko-persistence-jdbc.shared-databases.slick {
          profile = "slick.jdbc.PostgresProfile$"
          db {
            url = "%s"
            user = "%s"
            password = ""
            driver = org.postgresql.Driver
            numThreads = 8
            maxConnections = 8
            minConnections = 1
          }
        }
        """;
    return ConfigFactory.parseString(text.formatted(url, user)).withFallback(ConfigFactory.load());
  }

  @Override
  public void createTables(ActorSystem<Void> system, Config config) throws Exception {
    SchemaUtils.createIfNotExists(system.classicSystem()).toCompletableFuture().get(60, TimeUnit.SECONDS);
  }

  private JdbcReadJournal journal(ActorSystem<Void> system) {
    return PersistenceQuery.get(system).getReadJournalFor(JdbcReadJournal.class, JdbcReadJournal.Identifier());
  }

  @Override
  public List<EventEnvelope> eventsOf(ActorSystem<Void> system, String id) throws Exception {
    var events = journal(system).currentEventsByPersistenceId(id, 0, Long.MAX_VALUE);
    return events.runWith(Sink.seq(), system).toCompletableFuture().get();
  }

  @Override
  public Set<String> tagsOf(ActorSystem<Void> system, EventEnvelope envelope) throws Exception {
    if (tags == null) {
      tags = new HashMap<>();
      for (String tag : Journal.TAGS) {
        var events = journal(system).currentEventsByTag(tag, Offset.noOffset());
        for (EventEnvelope found : events.runWith(Sink.seq(), system).toCompletableFuture().get()) {
          tags.computeIfAbsent(place(found), none -> new TreeSet<>()).add(tag);
        }
      }
    }
    Set<String> found = tags.getOrDefault(place(envelope), Set.of());
    if (!found.equals(Journal.tagsOf(envelope.event()))) throw new IllegalStateException(place(envelope) + found);
    return found;
  }

  private static String place(EventEnvelope envelope) {
    return envelope.persistenceId() + " " + envelope.sequenceNr();
  }

  @Override
  public String timeOf(ActorSystem<Void> system, EventEnvelope envelope) {
    var milliseconds = DateTimeFormatter.ofPattern("yyyy-MM-dd'T'HH:mm:ss.SSS").withZone(ZoneOffset.UTC);
    return milliseconds.format(Instant.ofEpochMilli(envelope.timestamp()));
  }
}
