import org.apache.pekko.actor.typed.ActorSystem;
import org.apache.pekko.persistence.query.EventEnvelope;
import org.apache.pekko.persistence.query.PersistenceQuery;
import org.apache.pekko.persistence.r2dbc.query.javadsl.R2dbcReadJournal;
import org.apache.pekko.stream.javadsl.Sink;
import com.typesafe.config.Config;
import com.typesafe.config.ConfigFactory;
import io.r2dbc.spi.ConnectionFactories;
import io.r2dbc.spi.ConnectionFactoryOptions;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.List;
import java.util.Set;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

/** pekko-persistence-r2dbc on PostgreSQL; with the names of Akka put for those of Pekko, akka-persistence-r2dbc. */
public class R2dbc implements Journal.Plugin {
  public static void main(String[] arguments) throws Exception {
    Journal.run(new R2dbc(), arguments);
  }

  /** The plugin makes no tables. */
  private static final String TABLES =
      """
      CREATE TABLE event_journal (
          slice int NOT NULL, entity_type varchar(255) NOT NULL, persistence_id varchar(255) NOT NULL,
          seq_nr bigint NOT NULL, db_timestamp timestamptz NOT NULL, event_ser_id int NOT NULL,
          event_ser_manifest varchar(255) NOT NULL, event_payload bytea NOT NULL,
          deleted boolean NOT NULL DEFAULT false, writer varchar(255) NOT NULL, adapter_manifest varchar(255),
          tags text[], meta_ser_id int, meta_ser_manifest varchar(255), meta_payload bytea,
          PRIMARY KEY (persistence_id, seq_nr));
      CREATE INDEX event_journal_slice_idx ON event_journal (slice, entity_type, db_timestamp, seq_nr);
      CREATE TABLE snapshot (
          slice int NOT NULL, entity_type varchar(255) NOT NULL, persistence_id varchar(255) NOT NULL,
          seq_nr bigint NOT NULL, write_timestamp bigint NOT NULL, ser_id int NOT NULL,
          ser_manifest varchar(255) NOT NULL, snapshot bytea NOT NULL, meta_ser_id int,
          meta_ser_manifest varchar(255), meta_payload bytea,
          PRIMARY KEY (persistence_id));
      """;

  @Override
  public Config config(String host, String port, String database, String user) {
    String text =
        """
        pekko.loglevel = OFF
        pekko.stdout-loglevel = OFF
        pekko.log-dead-letters = off
        pekko.actor.serialization-bindings {
          "Journal$AsJson" = jackson-json
          "Journal$AsCbor" = jackson-cbor
        }
        pekko.persistence.journal.plugin = pekko.persistence.r2dbc.journal
        pekko.persistence.snapshot-store.plugin = pekko.persistence.r2dbc.snapshot
        pekko.persistence.r2dbc.connection-factory {
          driver = postgres
          host = "%s"
          port = %s
          database = "%s"
          user = "%s"
          password = ""
        }
        """;
    return ConfigFactory.parseString(text.formatted(host, port, database, user)).withFallback(ConfigFactory.load());
  }

  @Override
  public void createTables(ActorSystem<Void> system, Config config) {
    Config to = config.getConfig("pekko.persistence.r2dbc.connection-factory");
    var options =
        ConnectionFactoryOptions.builder()
            .option(ConnectionFactoryOptions.DRIVER, "postgresql")
            .option(ConnectionFactoryOptions.HOST, to.getString("host"))
            .option(ConnectionFactoryOptions.PORT, to.getInt("port"))
            .option(ConnectionFactoryOptions.DATABASE, to.getString("database"))
            .option(ConnectionFactoryOptions.USER, to.getString("user"))
            .build();
    var connection = Mono.from(ConnectionFactories.get(options).create()).block();
    Flux.from(connection.createStatement(TABLES).execute()).flatMap(result -> result.getRowsUpdated()).blockLast();
    Mono.from(connection.close()).block();
  }

  private R2dbcReadJournal journal(ActorSystem<Void> system) {
    return PersistenceQuery.get(system).getReadJournalFor(R2dbcReadJournal.class, R2dbcReadJournal.Identifier());
  }

  @Override
  public List<EventEnvelope> eventsOf(ActorSystem<Void> system, String id) throws Exception {
    var events = journal(system).currentEventsByPersistenceId(id, 0, Long.MAX_VALUE);
    return events.runWith(Sink.seq(), system).toCompletableFuture().get();
  }

  /** Pekko's plugin stores tags, and has no query for them. Akka's of the version that is used here stores none. */
  @Override
  public Set<String> tagsOf(ActorSystem<Void> system, EventEnvelope envelope) {
    return ActorSystem.class.getName().startsWith("akka") ? Set.of() : Journal.tagsOf(envelope.event());
  }

  @Override
  public String timeOf(ActorSystem<Void> system, EventEnvelope envelope) throws Exception {
    var time = journal(system).timestampOf(envelope.persistenceId(), envelope.sequenceNr());
    Instant found = time.toCompletableFuture().get().orElseThrow();
    return DateTimeFormatter.ofPattern("yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'").withZone(ZoneOffset.UTC).format(found);
  }
}
