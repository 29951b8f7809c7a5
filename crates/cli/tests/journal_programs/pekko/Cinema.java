import com.google.protobuf.CodedInputStream;
import com.google.protobuf.CodedOutputStream;
import com.typesafe.config.Config;
import com.typesafe.config.ConfigFactory;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.NotSerializableException;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.pekko.actor.typed.ActorRef;
import org.apache.pekko.actor.typed.ActorSystem;
import org.apache.pekko.actor.typed.Behavior;
import org.apache.pekko.actor.typed.javadsl.AskPattern;
import org.apache.pekko.actor.typed.javadsl.Behaviors;
import org.apache.pekko.persistence.jdbc.query.javadsl.JdbcReadJournal;
import org.apache.pekko.persistence.jdbc.testkit.javadsl.SchemaUtils;
import org.apache.pekko.persistence.query.PersistenceQuery;
import org.apache.pekko.persistence.typed.PersistenceId;
import org.apache.pekko.persistence.typed.javadsl.CommandHandlerWithReply;
import org.apache.pekko.persistence.typed.javadsl.EventHandler;
import org.apache.pekko.persistence.typed.javadsl.EventSourcedBehaviorWithEnforcedReplies;
import org.apache.pekko.persistence.typed.javadsl.ReplyEffect;
import org.apache.pekko.persistence.typed.javadsl.RetentionCriteria;
import org.apache.pekko.serialization.SerializerWithStringManifest;
import org.apache.pekko.stream.javadsl.Sink;

/**
 * A cinema on Pekko Persistence JDBC, which is used by many at once until a line comes, or standard input ends. The
 * arguments are the host, the port and the name of a database, and its user.
 *
 * <p>Its shows are persistent actors. Their events are the messages of cinema/proto/cinema.proto, which a serializer of
 * its own writes. For each change that a show has confirmed it prints the persistence id, the sequence number of the
 * event, its manifest, and the number of the seat, or of all seats of a new show. Started again, it goes on with the
 * shows that are there.
 */
public class Cinema {
  static final int SHOWS_MAX = 40;
  static final int SEATS = 40;
  static final int CALLERS = 8;
  static final Duration PATIENCE = Duration.ofSeconds(120);
  static final Duration PAUSE = Duration.ofMillis(10);

  // What is stored.

  interface Stored {}

  interface Event extends Stored {}

  record ShowCreated(String show, String title, int seats, long at) implements Event {}

  record SeatReserved(String show, int seat, long at) implements Event {}

  record SeatReservationCancelled(String show, int seat, long at) implements Event {}

  /** A show: how many events it has had, how many seats there are, and which are reserved. */
  record State(long events, String title, int seats, BitSet reserved) implements Stored {
    State after(Event event) {
      if (event instanceof ShowCreated created) return new State(1, created.title(), created.seats(), new BitSet());
      BitSet next = (BitSet) reserved.clone();
      if (event instanceof SeatReserved it) next.set(it.seat());
      if (event instanceof SeatReservationCancelled it) next.clear(it.seat());
      return new State(events + 1, title, seats, next);
    }
  }

  // What a show is asked.

  /** The answer: the sequence number of the event, or 0 if the command was refused. */
  interface Command {
    ActorRef<Long> replyTo();
  }

  record Create(String title, int seats, ActorRef<Long> replyTo) implements Command {}

  record Reserve(int seat, ActorRef<Long> replyTo) implements Command {}

  record Cancel(int seat, ActorRef<Long> replyTo) implements Command {}

  static class Show extends EventSourcedBehaviorWithEnforcedReplies<Command, Event, State> {
    final String show;

    Show(String show) {
      super(PersistenceId.of("Show", show));
      this.show = show;
    }

    @Override
    public State emptyState() {
      return new State(0, "", 0, new BitSet());
    }

    @Override
    public CommandHandlerWithReply<Command, Event, State> commandHandler() {
      return newCommandHandlerWithReplyBuilder()
          .forAnyState()
          .onCommand(Create.class, (state, it) -> decided(state.seats() == 0, it, created(it)))
          .onCommand(
              Reserve.class,
              (state, it) -> decided(has(state, it.seat(), false), it, new SeatReserved(show, it.seat(), now())))
          .onCommand(
              Cancel.class,
              (state, it) ->
                  decided(has(state, it.seat(), true), it, new SeatReservationCancelled(show, it.seat(), now())))
          .build();
    }

    private Event created(Create command) {
      return new ShowCreated(show, command.title(), command.seats(), now());
    }

    private static boolean has(State state, int seat, boolean reserved) {
      return seat < state.seats() && state.reserved().get(seat) == reserved;
    }

    private ReplyEffect<Event, State> decided(boolean isAllowed, Command command, Event event) {
      if (!isAllowed) return Effect().reply(command.replyTo(), 0L);
      return Effect().persist(event).thenReply(command.replyTo(), State::events);
    }

    private static long now() {
      return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }

    @Override
    public EventHandler<State, Event> eventHandler() {
      return newEventHandlerBuilder().forAnyState().onAnyEvent(State::after);
    }

    /** By these a projection of the old application was shared out. */
    @Override
    public Set<String> tagsFor(Event event) {
      return Set.of("shows-" + Math.floorMod(show.hashCode(), 4));
    }

    @Override
    public RetentionCriteria retentionCriteria() {
      return RetentionCriteria.snapshotEvery(50, 2);
    }
  }

  /** Protocol Buffers, by the messages of cinema/proto/cinema.proto. */
  public static class Messages extends SerializerWithStringManifest {
    @Override
    public int identifier() {
      return 4711;
    }

    @Override
    public String manifest(Object stored) {
      return stored instanceof State ? "ShowSnapshot" : stored.getClass().getSimpleName();
    }

    interface Fields {
      void write(CodedOutputStream to) throws IOException;
    }

    private static byte[] message(Fields fields) {
      try {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        CodedOutputStream to = CodedOutputStream.newInstance(bytes);
        fields.write(to);
        to.flush();
        return bytes.toByteArray();
      } catch (IOException impossible) {
        throw new IllegalStateException(impossible);
      }
    }

    /** Fields without a value are not written. */
    private static void number(CodedOutputStream to, int field, int number) throws IOException {
      if (number != 0) to.writeUInt32(field, number);
    }

    private static byte[] changed(String show, int seat, long at) {
      return message(
          to -> {
            to.writeString(1, show);
            number(to, 2, seat);
            to.writeInt64(3, at);
          });
    }

    private static void seats(CodedOutputStream to, int seats, BitSet reserved) throws IOException {
      byte[] price =
          message(
              money -> {
                money.writeString(1, "100.00");
                money.writeString(2, "EUR");
              });
      for (int n = 0; n < seats; n++) {
        int seat = n;
        to.writeByteArray(
            3,
            message(
                one -> {
                  number(one, 1, seat);
                  one.writeEnum(2, reserved.get(seat) ? 2 : 1);
                  one.writeByteArray(3, price);
                }));
      }
    }

    @Override
    public byte[] toBinary(Object stored) {
      if (stored instanceof SeatReserved it) return changed(it.show(), it.seat(), it.at());
      if (stored instanceof SeatReservationCancelled it) return changed(it.show(), it.seat(), it.at());
      if (stored instanceof ShowCreated it) {
        return message(
            to -> {
              to.writeString(1, it.show());
              to.writeString(2, it.title());
              seats(to, it.seats(), new BitSet());
              to.writeInt64(4, it.at());
            });
      }
      State state = (State) stored;
      return message(
          to -> {
            to.writeString(2, state.title());
            seats(to, state.seats(), state.reserved());
            to.writeInt64(15, state.events());
          });
    }

    @Override
    public Object fromBinary(byte[] bytes, String manifest) throws NotSerializableException {
      try {
        return read(CodedInputStream.newInstance(bytes), manifest);
      } catch (IOException wrong) {
        throw new NotSerializableException(manifest + ": " + wrong);
      }
    }

    private static Object read(CodedInputStream from, String manifest) throws IOException {
      boolean isChange = manifest.startsWith("Seat");
      String show = "", title = "";
      int seat = 0, seats = 0;
      long at = 0, events = 0;
      BitSet reserved = new BitSet();
      for (int tag = from.readTag(); tag != 0; tag = from.readTag()) {
        switch (tag >>> 3) {
          case 1 -> show = from.readString();
          case 2 -> {
            if (isChange) seat = from.readUInt32();
            else title = from.readString();
          }
          case 3 -> {
            if (isChange) at = from.readInt64();
            else reserved.set(seats++, isReserved(CodedInputStream.newInstance(from.readByteArray())));
          }
          case 4 -> at = from.readInt64();
          case 15 -> events = from.readInt64();
          default -> from.skipField(tag);
        }
      }
      return switch (manifest) {
        case "ShowCreated" -> new ShowCreated(show, title, seats, at);
        case "SeatReserved" -> new SeatReserved(show, seat, at);
        case "SeatReservationCancelled" -> new SeatReservationCancelled(show, seat, at);
        case "ShowSnapshot" -> new State(events, title, seats, reserved);
        default -> throw new NotSerializableException(manifest);
      };
    }

    private static boolean isReserved(CodedInputStream seat) throws IOException {
      boolean reserved = false;
      for (int tag = seat.readTag(); tag != 0; tag = seat.readTag()) {
        if (tag >>> 3 == 2) reserved = seat.readEnum() == 2;
        else seat.skipField(tag);
      }
      return reserved;
    }
  }

  // The application.

  /** A command to one of the shows. */
  record To(String show, Command command) {}

  /** Passes each command on to the actor of its show. */
  static Behavior<To> shows() {
    return Behaviors.setup(
        context -> {
          Map<String, ActorRef<Command>> shows = new HashMap<>();
          return Behaviors.receive(To.class)
              .onMessage(
                  To.class,
                  to -> {
                    shows.computeIfAbsent(to.show(), show -> context.spawn(new Show(show), show)).tell(to.command());
                    return Behaviors.same();
                  })
              .build();
        });
  }

  final ActorSystem<To> system;
  final List<String> shows = new CopyOnWriteArrayList<>();
  volatile boolean isStopping;

  Cinema(Config config) throws Exception {
    system = ActorSystem.create(shows(), "cinema", config);
    SchemaUtils.createIfNotExists(system.classicSystem()).toCompletableFuture().get(60, TimeUnit.SECONDS);
    PersistenceQuery.get(system)
        .getReadJournalFor(JdbcReadJournal.class, JdbcReadJournal.Identifier())
        .currentPersistenceIds()
        .runWith(Sink.seq(), system)
        .toCompletableFuture()
        .get()
        .forEach(id -> shows.add(id.substring("Show|".length())));
  }

  /** Gives a command to a show, and prints what it has confirmed. */
  private boolean confirmed(String show, String manifest, int number, Function<ActorRef<Long>, Command> command)
      throws Exception {
    Function<ActorRef<Long>, To> to = replyTo -> new To(show, command.apply(replyTo));
    long sequence =
        AskPattern.<To, Long>ask(system, to::apply, PATIENCE, system.scheduler()).toCompletableFuture().get();
    if (sequence > 0) System.out.println("Show|" + show + " " + sequence + " " + manifest + " " + number);
    return sequence > 0;
  }

  /** Creates shows, reserves seats and gives them back. Every second command or so is refused. */
  private void call(Random random) {
    try {
      while (!isStopping) {
        if (shows.isEmpty() || shows.size() < SHOWS_MAX && random.nextInt(10) == 0) {
          String show = UUID.randomUUID().toString();
          confirmed(show, "ShowCreated", SEATS, to -> new Create("Amélie & « Ran »", SEATS, to));
          shows.add(show);
        }
        String show = shows.get(random.nextInt(shows.size()));
        int seat = random.nextInt(SEATS);
        if (random.nextInt(4) > 0) confirmed(show, "SeatReserved", seat, to -> new Reserve(seat, to));
        else confirmed(show, "SeatReservationCancelled", seat, to -> new Cancel(seat, to));
        Thread.sleep(PAUSE.toMillis());
      }
    } catch (Exception failed) {
      failed.printStackTrace();
      System.exit(1);
    }
  }

  public static void main(String[] arguments) throws Exception {
    String own =
        """
        pekko.actor.serializers.cinema = "Cinema$Messages"
        pekko.actor.serialization-bindings { "Cinema$Stored" = cinema }
        """;
    Config journal = new Jdbc().config(arguments[0], arguments[1], arguments[2], arguments[3]);
    Cinema cinema = new Cinema(ConfigFactory.parseString(own).withFallback(journal));
    List<Thread> callers = new ArrayList<>();
    for (int n = 0; n < CALLERS; n++) {
      Thread caller = new Thread(() -> cinema.call(new Random()));
      caller.start();
      callers.add(caller);
    }
    System.in.read();
    cinema.isStopping = true;
    for (Thread caller : callers) caller.join();
    cinema.system.terminate();
    cinema.system.getWhenTerminated().toCompletableFuture().get(120, TimeUnit.SECONDS);
  }
}
