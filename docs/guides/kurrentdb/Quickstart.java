import io.kurrent.dbclient.AppendToStreamOptions;
import io.kurrent.dbclient.EventDataBuilder;
import io.kurrent.dbclient.KurrentDBClient;
import io.kurrent.dbclient.KurrentDBConnectionString;
import io.kurrent.dbclient.ReadStreamOptions;
import io.kurrent.dbclient.ResolvedEvent;
import io.kurrent.dbclient.StreamState;
import io.kurrent.dbclient.SubscribeToAllOptions;
import io.kurrent.dbclient.Subscription;
import io.kurrent.dbclient.SubscriptionFilter;
import io.kurrent.dbclient.SubscriptionListener;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;

/** An order, written, read and followed with the Java client: java Quickstart 127.0.0.1:2113 */
public final class Quickstart {
    public static void main(String[] arguments) throws Exception {
        var settings = KurrentDBConnectionString.parseOrThrow("kurrentdb://" + arguments[0] + "?tls=false");
        var client = KurrentDBClient.create(settings);

        var stream = "order-" + UUID.randomUUID();
        var data = "{\"order\": 1}".getBytes();
        var created = EventDataBuilder.json(UUID.randomUUID(), "OrderCreated", data).build();
        var shippedId = UUID.randomUUID();
        var shipped = EventDataBuilder.json(shippedId, "OrderShipped", data).build();
        var first = AppendToStreamOptions.get().streamState(StreamState.noStream());
        client.appendToStream(stream, first, created).get();
        var second = AppendToStreamOptions.get().streamState(StreamState.streamRevision(0));
        client.appendToStream(stream, second, shipped).get();

        for (ResolvedEvent event : client.readStream(stream, ReadStreamOptions.get()).get().getEvents()) {
            var recorded = event.getOriginalEvent();
            System.out.println(recorded.getRevision() + " " + recorded.getEventType());
        }

        var seen = new CountDownLatch(1);
        var listener = new SubscriptionListener() {
            @Override
            public void onEvent(Subscription subscription, ResolvedEvent event) {
                if (event.getOriginalEvent().getEventId().equals(shippedId)) {
                    System.out.println("followed " + event.getOriginalEvent().getEventType());
                    seen.countDown();
                }
            }
        };
        var filter = SubscriptionFilter.newBuilder().addEventTypePrefix("Order").build();
        client.subscribeToAll(listener, SubscribeToAllOptions.get().fromStart().filter(filter)).get();
        seen.await();
        System.exit(0);
    }
}
