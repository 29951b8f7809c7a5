import io.grpc.StatusRuntimeException;
import io.kurrent.dbclient.AppendStreamRequest;
import io.kurrent.dbclient.AppendToStreamOptions;
import io.kurrent.dbclient.CreatePersistentSubscriptionToAllOptions;
import io.kurrent.dbclient.CreatePersistentSubscriptionToStreamOptions;
import io.kurrent.dbclient.DeleteStreamOptions;
import io.kurrent.dbclient.EventData;
import io.kurrent.dbclient.EventDataBuilder;
import io.kurrent.dbclient.KurrentDBClient;
import io.kurrent.dbclient.KurrentDBClientSettings;
import io.kurrent.dbclient.KurrentDBConnectionString;
import io.kurrent.dbclient.KurrentDBPersistentSubscriptionsClient;
import io.kurrent.dbclient.KurrentDBProjectionManagementClient;
import io.kurrent.dbclient.NackAction;
import io.kurrent.dbclient.PersistentSubscription;
import io.kurrent.dbclient.PersistentSubscriptionListener;
import io.kurrent.dbclient.Position;
import io.kurrent.dbclient.ReadAllOptions;
import io.kurrent.dbclient.ReadResult;
import io.kurrent.dbclient.ReadStreamOptions;
import io.kurrent.dbclient.ResolvedEvent;
import io.kurrent.dbclient.StreamDeletedException;
import io.kurrent.dbclient.StreamMetadata;
import io.kurrent.dbclient.StreamNotFoundException;
import io.kurrent.dbclient.StreamState;
import io.kurrent.dbclient.SubscribeToAllOptions;
import io.kurrent.dbclient.SubscribeToStreamOptions;
import io.kurrent.dbclient.Subscription;
import io.kurrent.dbclient.SubscriptionFilter;
import io.kurrent.dbclient.SubscriptionFilterBuilder;
import io.kurrent.dbclient.SubscriptionListener;
import io.kurrent.dbclient.WrongExpectedVersionException;

import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * What a team does with the published Java client, against servers whose addresses are the first argument. The second
 * argument is a way to one of them that is cut whenever somebody connects to the address that is the third.
 *
 * <p>Each check stands alone, on streams of its own. The program prints a line for each and fails with the first that is
 * wrong.
 */
public final class Check {
    /** By default the client gives up after ten seconds, for which a machine may stand still. */
    private static final String OPTIONS = "?tls=false&defaultDeadline=60000&keepAliveTimeout=60000";

    /** Milliseconds: however long a check takes, no event of a group comes again because of that. */
    private static final int NEVER = 3_600_000;

    private static KurrentDBClient client;
    private static KurrentDBPersistentSubscriptionsClient groups;

    private static String name(String category) {
        return category + "-" + UUID.randomUUID();
    }

    private static EventData event(int n) {
        return EventDataBuilder.json(
                        UUID.randomUUID(), "item-added", ("{\"n\":" + n + "}").getBytes(StandardCharsets.UTF_8))
                .build();
    }

    private static EventData[] events(int count) {
        EventData[] events = new EventData[count];
        Arrays.setAll(events, Check::event);
        return events;
    }

    private static int number(ResolvedEvent event) {
        String text = new String(event.getEvent().getEventData(), StandardCharsets.UTF_8);
        return Integer.parseInt(text.replaceAll("[^0-9]", ""));
    }

    private static List<Integer> numbers(ReadResult read) {
        List<Integer> found = new ArrayList<>();
        for (ResolvedEvent event : read.getEvents()) found.add(number(event));
        return found;
    }

    private static void holds(boolean so, Object found) {
        if (!so) throw new AssertionError(found);
    }

    private static void fails(Class<? extends Throwable> expected, CompletableFuture<?> call) throws Exception {
        try {
            call.get(60, TimeUnit.SECONDS);
        } catch (ExecutionException error) {
            holds(expected.isInstance(error.getCause()), error.getCause());
            return;
        }
        throw new AssertionError(expected + " did not come");
    }

    private static AppendToStreamOptions expecting(StreamState state) {
        return AppendToStreamOptions.get().streamState(state);
    }

    private static List<Long> revisions(String stream) throws Exception {
        List<Long> found = new ArrayList<>();
        for (ResolvedEvent event : client.readStream(stream, ReadStreamOptions.get()).get().getEvents()) {
            found.add(event.getOriginalEvent().getRevision());
        }
        return found;
    }

    private static void expectedStates() throws Exception {
        for (StreamState state : List.of(StreamState.any(), StreamState.noStream())) {
            client.appendToStream(name("cart"), expecting(state), event(0)).get();
        }
        String stream = name("cart");
        for (StreamState state : List.of(StreamState.streamExists(), StreamState.streamRevision(0))) {
            fails(WrongExpectedVersionException.class, client.appendToStream(stream, expecting(state), event(0)));
        }
        client.appendToStream(stream, expecting(StreamState.noStream()), event(0)).get();
        for (StreamState state : List.of(StreamState.noStream(), StreamState.streamRevision(5))) {
            fails(WrongExpectedVersionException.class, client.appendToStream(stream, expecting(state), event(0)));
        }
        client.appendToStream(stream, expecting(StreamState.streamRevision(0)), events(2)).get();
        client.appendToStream(stream, expecting(StreamState.streamExists()), event(3)).get();
        holds(revisions(stream).equals(List.of(0L, 1L, 2L, 3L)), revisions(stream));
    }

    private static void aRetryIsStoredOnce() throws Exception {
        String stream = name("cart");
        EventData[] batch = events(3);
        var first = client.appendToStream(stream, expecting(StreamState.noStream()), batch).get();
        client.appendToStream(stream, event(3)).get();
        for (StreamState state : List.of(StreamState.noStream(), StreamState.any())) {
            var again = client.appendToStream(stream, expecting(state), batch).get();
            holds(again.getLogPosition().equals(first.getLogPosition()), again);
        }
        holds(revisions(stream).size() == 4, revisions(stream));
    }

    private static void reads() throws Exception {
        String stream = name("größe");
        client.appendToStream(stream, events(1_500)).get();
        holds(revisions(stream).size() == 1_500, revisions(stream).size());
        var back = client.readStream(stream, ReadStreamOptions.get().backwards().fromEnd().maxCount(2)).get();
        holds(number(back.getEvents().get(0)) == 1_499, back);
        holds(back.getEvents().size() == 2, back);
        var forth = client.readStream(stream, ReadStreamOptions.get().fromRevision(10).maxCount(3)).get();
        holds(numbers(forth).equals(List.of(10, 11, 12)), numbers(forth));
        var down = client.readStream(stream, ReadStreamOptions.get().backwards().fromRevision(10).maxCount(3)).get();
        holds(numbers(down).equals(List.of(10, 9, 8)), numbers(down));
        fails(StreamNotFoundException.class, client.readStream(name("cart"), ReadStreamOptions.get()));
        var last = client.readAll(ReadAllOptions.get().backwards().fromEnd().maxCount(1)).get();
        holds(number(last.getEvents().get(0)) == 1_499, last);
    }

    /** Collects what a subscription delivers. */
    private static final class Collector extends SubscriptionListener {
        final BlockingQueue<ResolvedEvent> found = new LinkedBlockingQueue<>();

        @Override
        public void onEvent(Subscription subscription, ResolvedEvent event) {
            found.add(event);
        }

        ResolvedEvent nextEvent() throws Exception {
            ResolvedEvent event = found.poll(60, TimeUnit.SECONDS);
            holds(event != null, "no event came");
            return event;
        }

        int next() throws Exception {
            return number(nextEvent());
        }
    }

    private static void subscriptions() throws Exception {
        String stream = name("cart");
        client.appendToStream(stream, events(100)).get();
        Thread writer = new Thread(() -> {
            try {
                for (int n = 100; n < 300; n++) {
                    client.appendToStream(stream, expecting(StreamState.streamRevision(n - 1)), event(n)).get();
                }
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        writer.start();
        Collector first = new Collector();
        Subscription running =
                client.subscribeToStream(stream, first, SubscribeToStreamOptions.get().fromStart()).get();
        for (int n = 0; n < 180; n++) holds(first.next() == n, n);
        running.stop();
        Collector rest = new Collector();
        running = client.subscribeToStream(stream, rest, SubscribeToStreamOptions.get().fromRevision(179)).get();
        for (int n = 180; n < 300; n++) holds(rest.next() == n, n);
        running.stop();
        writer.join();
        Collector all = new Collector();
        var filter = SubscriptionFilter.newBuilder().addStreamNamePrefix(stream).build();
        running = client.subscribeToAll(all, SubscribeToAllOptions.get().fromStart().filter(filter)).get();
        for (int n = 0; n < 300; n++) holds(all.next() == n, n);
        running.stop();
    }

    /** Stream and type of the first events after a position that a filter lets through. */
    private static List<String> through(Position start, SubscriptionFilterBuilder filter, int count) throws Exception {
        Collector collector = new Collector();
        var options = SubscribeToAllOptions.get().fromPosition(start).filter(filter.build());
        Subscription running = client.subscribeToAll(collector, options).get();
        List<String> found = new ArrayList<>();
        while (found.size() < count) {
            var event = collector.nextEvent().getOriginalEvent();
            found.add(event.getStreamId() + " " + event.getEventType());
        }
        running.stop();
        return found;
    }

    /** Filters of all events, of which one looks ahead. */
    private static void filters() throws Exception {
        Position start = client.appendToStream(name("start"), event(0)).get().getLogPosition();
        String one = name("one");
        String two = name("two");
        EventData removed = EventDataBuilder.json(UUID.randomUUID(), "item-removed", "{\"n\":1}".getBytes()).build();
        client.appendToStream(one, event(0), removed).get();
        StreamMetadata newest = new StreamMetadata();
        newest.setMaxCount(10L);
        client.setStreamMetadata(one, newest).get();
        client.appendToStream(two, event(0)).get();
        List<String> all = List.of(one + " item-added", one + " item-removed", two + " item-added");
        List<String> found = through(start, filter().withEventTypeRegularExpression("^[^\\$].*"), 3);
        holds(found.equals(all), found);
        found = through(start, filter().withEventTypeRegularExpression("^(?!(\\$|item-rem))"), 2);
        holds(found.equals(List.of(all.get(0), all.get(2))), found);
        found = through(start, filter().addEventTypePrefix("item-rem"), 1);
        holds(found.equals(all.subList(1, 2)), found);
        found = through(start, filter().withStreamNameRegularExpression("^" + one + "$"), 2);
        holds(found.equals(all.subList(0, 2)), found);
        found = through(start, filter().addStreamNamePrefix(one), 2);
        holds(found.equals(all.subList(0, 2)), found);
        List<String> everything = new ArrayList<>();
        for (ResolvedEvent event : client.readAll(ReadAllOptions.get().fromPosition(start)).get().getEvents()) {
            everything.add(event.getOriginalEvent().getEventType());
        }
        holds(everything.contains("$metadata"), everything);
    }

    private static SubscriptionFilterBuilder filter() {
        return SubscriptionFilter.newBuilder();
    }

    private static void manyAtOnce() throws Exception {
        List<String> streams = new ArrayList<>();
        List<CompletableFuture<?>> calls = new ArrayList<>();
        for (int n = 0; n < 200; n++) {
            streams.add(name("cart"));
            calls.add(client.appendToStream(streams.get(n), expecting(StreamState.noStream()), events(10)));
        }
        for (CompletableFuture<?> call : calls) call.get(60, TimeUnit.SECONDS);
        for (String stream : streams.subList(0, 5)) holds(revisions(stream).size() == 10, stream);
    }

    private static void metadata() throws Exception {
        String stream = name("cart");
        client.appendToStream(stream, events(10)).get();
        StreamMetadata newest = new StreamMetadata();
        newest.setMaxCount(3L);
        client.setStreamMetadata(stream, newest).get();
        holds(revisions(stream).equals(List.of(7L, 8L, 9L)), revisions(stream));
        holds(client.getStreamMetadata(stream).get().getMaxCount() == 3L, "metadata");
        StreamMetadata truncated = new StreamMetadata();
        truncated.setTruncateBefore(5L);
        client.setStreamMetadata(stream, truncated).get();
        holds(revisions(stream).size() == 5, revisions(stream));
        StreamMetadata old = new StreamMetadata();
        old.setMaxAge(1L);
        client.setStreamMetadata(stream, old).get();
        until("all are too old", () -> revisions(stream).isEmpty());
        old.setMaxAge(3_600L);
        client.setStreamMetadata(stream, old).get();
        holds(revisions(stream).size() == 10, revisions(stream));
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    /** Waits until something is so, but not for ever. */
    private static void until(String what, Condition condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (!condition.holds()) {
            holds(System.nanoTime() < deadline, what);
            Thread.sleep(20);
        }
    }

    private static void deletes() throws Exception {
        String stream = name("cart");
        client.appendToStream(stream, events(2)).get();
        var wrong = DeleteStreamOptions.get().streamState(StreamState.streamRevision(7));
        fails(WrongExpectedVersionException.class, client.deleteStream(stream, wrong));
        client.deleteStream(stream, DeleteStreamOptions.get().streamState(StreamState.streamRevision(1))).get();
        fails(StreamNotFoundException.class, client.readStream(stream, ReadStreamOptions.get()));
        client.appendToStream(stream, expecting(StreamState.noStream()), event(2)).get();
        holds(revisions(stream).equals(List.of(2L)), revisions(stream));
        client.tombstoneStream(stream).get();
        // This client has no exception of its own for such a read.
        fails(StatusRuntimeException.class, client.readStream(stream, ReadStreamOptions.get()));
        fails(StreamDeletedException.class, client.appendToStream(stream, event(3)));
        fails(StreamDeletedException.class, client.deleteStream(stream));
    }

    private static void metadataAlone() throws Exception {
        String stream = name("cart");
        StreamMetadata newest = new StreamMetadata();
        newest.setMaxCount(3L);
        client.setStreamMetadata(stream, newest).get();
        client.deleteStream(stream, DeleteStreamOptions.get().streamState(StreamState.noStream())).get();
        client.appendToStream(stream, expecting(StreamState.noStream()), events(5)).get();
        holds(revisions(stream).size() == 5, revisions(stream));
    }

    private static void theProjectionsOfTheSystem(KurrentDBClientSettings settings) throws Exception {
        var projections = KurrentDBProjectionManagementClient.create(settings);
        projections.enable("$by_category").get();
        holds(projections.getStatus("$by_category").get().getStatus().equals("Running"), "it runs");
        holds(projections.list().get().size() == 5, projections.list().get());
        projections.shutdown().get();
    }

    private static void severalStreams() throws Exception {
        String one = name("cart");
        String two = name("cart");
        var right = List.of(
                new AppendStreamRequest(one, List.of(event(0), event(1)).iterator(), StreamState.noStream()),
                new AppendStreamRequest(two, List.of(event(0)).iterator(), StreamState.noStream()));
        client.multiStreamAppend(right.iterator()).get();
        holds(revisions(one).size() == 2 && revisions(two).size() == 1, "several");
        var wrong = List.of(
                new AppendStreamRequest(one, List.of(event(2)).iterator(), StreamState.streamRevision(1)),
                new AppendStreamRequest(two, List.of(event(1)).iterator(), StreamState.streamRevision(7)));
        fails(WrongExpectedVersionException.class, client.multiStreamAppend(wrong.iterator()));
        holds(revisions(one).size() == 2, "all or nothing");
    }

    private static void aGroup() throws Exception {
        String stream = name("cart");
        client.appendToStream(stream, events(10)).get();
        var settings = CreatePersistentSubscriptionToStreamOptions.get()
                .fromStart()
                .messageTimeoutInMs(NEVER)
                .maxRetryCount(1);
        groups.createToStream(stream, "mail", settings).get();
        // This client has no exceptions of its own for a group that is there already, or not at all.
        fails(StatusRuntimeException.class, groups.createToStream(stream, "mail", settings));
        fails(StatusRuntimeException.class, groups.deleteToStream(stream, "none"));
        BlockingQueue<String> found = new LinkedBlockingQueue<>();
        var listener = new PersistentSubscriptionListener() {
            @Override
            public void onEvent(PersistentSubscription subscription, int retries, ResolvedEvent event) {
                int n = number(event);
                found.add(n + " " + retries);
                if (n == 3 && retries == 0) subscription.nack(NackAction.Retry, "not yet", event);
                else if (n == 4) subscription.nack(NackAction.Park, "never", event);
                else if (n == 5) subscription.nack(NackAction.Skip, "unneeded", event);
                else subscription.ack(event);
            }
        };
        var consumer = groups.subscribeToStream(stream, "mail", listener).get();
        List<String> all = new ArrayList<>();
        while (all.size() < 11) {
            String one = found.poll(60, TimeUnit.SECONDS);
            holds(one != null, all);
            all.add(one);
        }
        holds(all.contains("3 1") && all.contains("9 0"), all);
        // A client that leaves takes back what it has not sent yet.
        until("one is parked, and all answers have arrived", () -> {
            var stats = groups.getInfoToStream(stream, "mail").get().get().getStats();
            return stats.getParkedMessageCount() == 1 && stats.getOutstandingMessagesCount() == 0;
        });
        consumer.stop();
        BlockingQueue<String> replayed = new LinkedBlockingQueue<>();
        var taking = new PersistentSubscriptionListener() {
            @Override
            public void onEvent(PersistentSubscription subscription, int retries, ResolvedEvent event) {
                replayed.add(number(event) + " " + retries);
                subscription.ack(event);
            }
        };
        groups.replayParkedMessagesToStream(stream, "mail").get();
        consumer = groups.subscribeToStream(stream, "mail", taking).get();
        String four = replayed.poll(60, TimeUnit.SECONDS);
        holds("4 0".equals(four), four);
        consumer.stop();
        holds(groups.listToStream(stream).get().size() == 1, "list");
        groups.deleteToStream(stream, "mail").get();
        holds(groups.getInfoToStream(stream, "mail").get().isEmpty(), "deleted");
    }

    private static void aGroupOfAllEvents() throws Exception {
        String wanted = name("wanted");
        String group = UUID.randomUUID().toString();
        var only = filter().addStreamNamePrefix(wanted).build();
        var settings = CreatePersistentSubscriptionToAllOptions.get().fromStart().filter(only);
        groups.createToAll(group, settings).get();
        client.appendToStream(name("cart"), events(3)).get();
        client.appendToStream(wanted, event(7)).get();
        BlockingQueue<Integer> found = new LinkedBlockingQueue<>();
        var listener = new PersistentSubscriptionListener() {
            @Override
            public void onEvent(PersistentSubscription subscription, int retries, ResolvedEvent event) {
                found.add(number(event));
                subscription.ack(event);
            }
        };
        var consumer = groups.subscribeToAll(group, listener).get();
        Integer first = found.poll(60, TimeUnit.SECONDS);
        holds(first != null && first == 7, first);
        consumer.stop();
        groups.deleteToAll(group).get();
    }

    /** A group is joined again after the connection of its consumer was cut: what was not answered for comes again. */
    private static void aCut(String through, String cutter) throws Exception {
        String stream = name("cart");
        client.appendToStream(stream, events(10)).get();
        var settings = CreatePersistentSubscriptionToStreamOptions.get().fromStart().messageTimeoutInMs(NEVER);
        groups.createToStream(stream, "cut", settings).get();
        var own = KurrentDBPersistentSubscriptionsClient.create(
                KurrentDBConnectionString.parseOrThrow("kurrentdb://" + through + OPTIONS));
        BlockingQueue<Integer> found = new LinkedBlockingQueue<>();
        CompletableFuture<Void> over = new CompletableFuture<>();
        own.subscribeToStream(stream, "cut", new PersistentSubscriptionListener() {
                    @Override
                    public void onEvent(PersistentSubscription subscription, int retries, ResolvedEvent event) {
                        found.add(number(event));
                        if (found.size() <= 4) subscription.ack(event);
                    }

                    @Override
                    public void onCancelled(PersistentSubscription subscription, Throwable error) {
                        over.complete(null);
                    }
                })
                .get();
        until("four answers have arrived", () -> {
            var stats = groups.getInfoToStream(stream, "cut").get().get().getStats();
            return found.size() == 10 && stats.getOutstandingMessagesCount() == 6;
        });
        String[] address = cutter.split(":");
        try (Socket knock = new Socket(address[0], Integer.parseInt(address[1]))) {
            knock.getInputStream().readAllBytes();
        }
        over.get(60, TimeUnit.SECONDS);
        until("the consumer has left", () ->
                groups.getInfoToStream(stream, "cut").get().get().getConnections().isEmpty());
        BlockingQueue<Integer> rest = new LinkedBlockingQueue<>();
        var taking = new PersistentSubscriptionListener() {
            @Override
            public void onEvent(PersistentSubscription subscription, int retries, ResolvedEvent event) {
                rest.add(number(event));
                subscription.ack(event);
            }
        };
        until("it is joined again", () -> {
            try {
                own.subscribeToStream(stream, "cut", taking).get();
                return true;
            } catch (ExecutionException error) {
                return false;
            }
        });
        until("the rest has come", () -> rest.size() == 6);
        List<Integer> expected = new ArrayList<>(new ArrayList<>(found).subList(4, 10));
        List<Integer> came = new ArrayList<>(rest);
        expected.sort(null);
        came.sort(null);
        holds(came.equals(expected), came);
        own.shutdown().get();
    }

    private interface Step {
        void run() throws Exception;
    }

    private static void check(String name, Step step) throws Exception {
        step.run();
        System.out.println(name);
    }

    public static void main(String[] arguments) throws Exception {
        for (String scheme : List.of("kurrentdb", "kurrentdb+discover")) {
            var settings = KurrentDBConnectionString.parseOrThrow(scheme + "://" + arguments[0] + OPTIONS);
            client = KurrentDBClient.create(settings);
            groups = KurrentDBPersistentSubscriptionsClient.create(settings);
            check("expectedStates", Check::expectedStates);
            check("aRetryIsStoredOnce", Check::aRetryIsStoredOnce);
            check("manyAtOnce", Check::manyAtOnce);
            check("reads", Check::reads);
            check("filters", Check::filters);
            check("subscriptions", Check::subscriptions);
            check("metadata", Check::metadata);
            check("deletes", Check::deletes);
            check("metadataAlone", Check::metadataAlone);
            check("theProjectionsOfTheSystem", () -> theProjectionsOfTheSystem(settings));
            check("severalStreams", Check::severalStreams);
            check("aGroup", Check::aGroup);
            check("aGroupOfAllEvents", Check::aGroupOfAllEvents);
            check("aCut", () -> aCut(arguments[1], arguments[2]));
            client.shutdown().get();
            groups.shutdown().get();
        }
        System.exit(0);
    }
}
