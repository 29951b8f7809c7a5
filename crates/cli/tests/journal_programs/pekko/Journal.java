import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.typesafe.config.Config;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.pekko.actor.AbstractActor;
import org.apache.pekko.actor.ExtendedActorSystem;
import org.apache.pekko.actor.typed.ActorRef;
import org.apache.pekko.actor.typed.ActorSystem;
import org.apache.pekko.actor.typed.Behavior;
import org.apache.pekko.actor.typed.Props;
import org.apache.pekko.actor.typed.javadsl.AskPattern;
import org.apache.pekko.actor.typed.javadsl.Behaviors;
import org.apache.pekko.persistence.AbstractPersistentActor;
import org.apache.pekko.persistence.DeleteMessagesSuccess;
import org.apache.pekko.persistence.query.EventEnvelope;
import org.apache.pekko.persistence.typed.DeleteEventsCompleted;
import org.apache.pekko.persistence.typed.DeleteSnapshotsCompleted;
import org.apache.pekko.persistence.typed.PersistenceId;
import org.apache.pekko.persistence.typed.javadsl.CommandHandler;
import org.apache.pekko.persistence.typed.javadsl.EventHandler;
import org.apache.pekko.persistence.typed.javadsl.EventSourcedBehavior;
import org.apache.pekko.persistence.typed.javadsl.RetentionCriteria;
import org.apache.pekko.persistence.typed.javadsl.SignalHandler;
import org.apache.pekko.serialization.Serialization;
import org.apache.pekko.serialization.SerializationExtension;
import org.apache.pekko.serialization.Serializers;

/**
 * Fills a journal with Pekko Persistence, and prints what its read journal finds: a line of JSON for each event, entity
 * by entity. The arguments are the host, the port and the name of a database, and its user.
 *
 * <p>Many entities persist at once, one event or some, as JSON, as CBOR and as text, with tags. Some make snapshots and
 * delete the events before them. An actor of the classic kind deletes all of its events and goes on, and another one
 * deletes all and ends.
 */
public class Journal {
  /** Written as JSON. */
  public interface AsJson {}

  /** Written as CBOR. */
  public interface AsCbor {}

  public record Deposited(long amount, String text, List<String> list) implements AsJson {}

  public record Noted(long number, byte[] bytes) implements AsCbor {}

  public record State(long events) implements AsJson {}

  record Persist(int events, ActorRef<Boolean> replyTo) {}

  static final int ENTITIES = 24;
  static final int COMMANDS = 30;
  static final List<String> TAGS = List.of("even", "large", "tag with, ä");

  /** What was deleted: events up to a number, and the snapshots before it. */
  static final LinkedBlockingQueue<Object> DELETED = new LinkedBlockingQueue<>();

  static Set<String> tagsOf(Object event) {
    Set<String> tags = new TreeSet<>();
    if (event instanceof Deposited deposited) {
      if (deposited.amount() % 2 == 0) tags.add(TAGS.get(0));
      if (deposited.amount() % 5 == 0) tags.add(TAGS.get(1));
      if (deposited.amount() % 7 == 0) tags.add(TAGS.get(2));
    }
    return tags;
  }

  static class Entity extends EventSourcedBehavior<Persist, Object, State> {
    final boolean deletes;

    Entity(PersistenceId id, boolean deletes) {
      super(id);
      this.deletes = deletes;
    }

    @Override
    public State emptyState() {
      return new State(0);
    }

    @Override
    public CommandHandler<Persist, Object, State> commandHandler() {
      return newCommandHandlerBuilder()
          .forAnyState()
          .onAnyCommand(
              (state, command) -> {
                List<Object> events = new ArrayList<>();
                for (int n = 0; n < command.events(); n++) events.add(event(state.events() + n));
                return Effect().persist(events).thenReply(command.replyTo(), after -> true);
              });
    }

    static Object event(long number) {
      if (number % 4 == 3) return new Noted(number, new byte[] {0, (byte) number, -1});
      // Large ones are compressed by the serializer.
      String text = number % 16 == 8 ? "ä \" \\ ".repeat(8_000) : "ä \" \\ \u2028";
      return new Deposited(number, text, List.of("x", "y"));
    }

    @Override
    public EventHandler<State, Object> eventHandler() {
      return newEventHandlerBuilder().forAnyState().onAnyEvent((state, event) -> new State(state.events() + 1));
    }

    @Override
    public Set<String> tagsFor(Object event) {
      return tagsOf(event);
    }

    @Override
    public RetentionCriteria retentionCriteria() {
      if (!deletes) return RetentionCriteria.disabled();
      return RetentionCriteria.snapshotEvery(10, 1).withDeleteEventsOnSnapshot();
    }

    @Override
    public SignalHandler<State> signalHandler() {
      return newSignalHandlerBuilder()
          .onSignal(DeleteEventsCompleted.class, (state, signal) -> DELETED.add(signal))
          .onSignal(DeleteSnapshotsCompleted.class, (state, signal) -> DELETED.add(signal))
          .build();
    }
  }

  /** Persists texts, deletes all of them, and persists again if that is wanted. */
  static class Classic extends AbstractPersistentActor {
    final String id;
    final int after;

    Classic(String id, int after) {
      this.id = id;
      this.after = after;
    }

    @Override
    public String persistenceId() {
      return id;
    }

    @Override
    public AbstractActor.Receive createReceiveRecover() {
      return receiveBuilder().matchAny(any -> {}).build();
    }

    @Override
    public AbstractActor.Receive createReceive() {
      return receiveBuilder()
          .match(
              String.class,
              command -> {
                persistAll(List.of("one", "two", "three"), each -> {});
                deferAsync("delete", each -> deleteMessages(3));
              })
          .match(
              DeleteMessagesSuccess.class,
              deleted -> {
                List<String> texts = new ArrayList<>();
                for (int n = 0; n < after; n++) texts.add("{\"n\":" + n + "}");
                persistAll(texts, each -> {});
                deferAsync("done", each -> DELETED.add(id));
              })
          .build();
    }
  }

  /** What differs between plugins. */
  public interface Plugin {
    /** The configuration that its page gives. */
    Config config(String host, String port, String database, String user);

    void createTables(ActorSystem<Void> system, Config config) throws Exception;

    List<EventEnvelope> eventsOf(ActorSystem<Void> system, String id) throws Exception;

    /** The tags of an event, as its queries find them. */
    Set<String> tagsOf(ActorSystem<Void> system, EventEnvelope envelope) throws Exception;

    /** When an event was stored, as an import tells it, or the beginning of that. */
    String timeOf(ActorSystem<Void> system, EventEnvelope envelope) throws Exception;
  }

  static void run(Plugin plugin, String[] arguments) throws Exception {
    Config config = plugin.config(arguments[0], arguments[1], arguments[2], arguments[3]);
    ActorSystem<Void> system = ActorSystem.create(Behaviors.empty(), "journal", config);
    try {
      plugin.createTables(system, config);
      print(system, plugin, fill(system));
    } finally {
      system.terminate();
    }
  }

  static List<String> fill(ActorSystem<Void> system) throws Exception {
    List<String> ids = new ArrayList<>();
    List<CompletableFuture<Void>> all = new ArrayList<>();
    int deletions = 0;
    for (int n = 0; n < ENTITIES; n++) {
      boolean deletes = n % 6 == 5;
      PersistenceId id = PersistenceId.of(deletes ? "Wallet" : "Account", String.valueOf(n));
      ids.add(id.id());
      Behavior<Persist> behavior = new Entity(id, deletes);
      ActorRef<Persist> entity = system.systemActorOf(behavior, "entity-" + n, Props.empty());
      CompletableFuture<Void> done = CompletableFuture.completedFuture(null);
      for (int command = 0; command < COMMANDS; command++) {
        int events = deletes ? 1 : 1 + command % 3;
        done =
            done.thenCompose(
                before ->
                    AskPattern.<Persist, Boolean>ask(
                            entity, to -> new Persist(events, to), Duration.ofSeconds(120), system.scheduler())
                        .toCompletableFuture()
                        .thenApply(persisted -> null));
      }
      all.add(done);
      // After the snapshots of 20 and 30 events, and then earlier snapshots.
      if (deletes) deletions += 4;
    }
    for (String id : List.of("singleton", "Ended|1")) {
      ids.add(id);
      int after = id.equals("singleton") ? 4 : 0;
      var classic = org.apache.pekko.actor.Props.create(Classic.class, () -> new Classic(id, after));
      ((ExtendedActorSystem) system.classicSystem())
          .systemActorOf(classic, "classic-" + after)
          .tell("begin", org.apache.pekko.actor.ActorRef.noSender());
      deletions += 1;
    }
    CompletableFuture.allOf(all.toArray(CompletableFuture[]::new)).get(300, TimeUnit.SECONDS);
    for (; deletions > 0; deletions--) {
      if (DELETED.poll(120, TimeUnit.SECONDS) == null) throw new IllegalStateException("events were not deleted");
    }
    return ids;
  }

  static void print(ActorSystem<Void> system, Plugin plugin, List<String> ids) throws Exception {
    Serialization serialization = SerializationExtension.get(system);
    ObjectMapper json = new ObjectMapper();
    for (String id : ids) {
      for (EventEnvelope envelope : plugin.eventsOf(system, id)) {
        Object event = envelope.event();
        Set<String> tags = plugin.tagsOf(system, envelope);
        byte[] bytes = serialization.serialize(event).get();
        var serializer = serialization.findSerializerFor(event);
        String manifest = Serializers.manifestFor(serializer, event);
        ObjectNode line = json.createObjectNode();
        line.put("key", id);
        line.put("sequence", envelope.sequenceNr());
        line.put("type", manifest.isEmpty() ? "serializer-" + serializer.identifier() : manifest);
        if (bytes.length > 0 && bytes[0] == '{') {
          line.set("data", json.readTree(new String(bytes, StandardCharsets.UTF_8)));
        } else {
          line.putObject("data").put("base64", Base64.getEncoder().encodeToString(bytes));
        }
        line.set("tags", json.valueToTree(tags));
        line.put("time", plugin.timeOf(system, envelope));
        System.out.println(json.writeValueAsString(line));
      }
    }
  }
}
