// An order, written, read and followed with the Go client: go run quickstart.go 127.0.0.1:2113
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/uuid"
	"github.com/kurrent-io/KurrentDB-Client-Go/kurrentdb"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	ctx := context.Background()
	settings := must(kurrentdb.ParseConnectionString("kurrentdb://" + os.Args[1] + "?tls=false"))
	client := must(kurrentdb.NewClient(settings))
	defer client.Close()

	stream := "order-" + uuid.NewString()
	order := func(eventType string) kurrentdb.EventData {
		return kurrentdb.EventData{
			EventID:     uuid.New(),
			ContentType: kurrentdb.ContentTypeJson,
			EventType:   eventType,
			Data:        []byte(`{"order": 1}`),
		}
	}
	created, shipped := order("OrderCreated"), order("OrderShipped")
	first := kurrentdb.AppendToStreamOptions{StreamState: kurrentdb.NoStream{}}
	must(client.AppendToStream(ctx, stream, first, created))
	second := kurrentdb.AppendToStreamOptions{StreamState: kurrentdb.Revision(0)}
	must(client.AppendToStream(ctx, stream, second, shipped))

	events := must(client.ReadStream(ctx, stream, kurrentdb.ReadStreamOptions{}, 10))
	for {
		event, err := events.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		recorded := must(event, err).OriginalEvent()
		fmt.Println(recorded.EventNumber, recorded.EventType)
	}
	events.Close()

	options := kurrentdb.SubscribeToAllOptions{
		From:   kurrentdb.Start{},
		Filter: &kurrentdb.SubscriptionFilter{Type: kurrentdb.EventFilterType, Prefixes: []string{"Order"}},
	}
	subscription := must(client.SubscribeToAll(ctx, options))
	defer subscription.Close()
	for {
		message := subscription.Recv()
		if message.SubscriptionDropped != nil {
			panic(message.SubscriptionDropped.Error)
		}
		if message.EventAppeared != nil && message.EventAppeared.OriginalEvent().EventID == shipped.EventID {
			fmt.Println("followed", message.EventAppeared.OriginalEvent().EventType)
			return
		}
	}
}
