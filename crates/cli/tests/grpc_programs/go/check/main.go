// What a team does with the published Go client, against servers whose addresses are the first argument. Each check stands
// alone, on streams of its own. The program prints a line for each and fails with the first that is wrong.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/google/uuid"
	"github.com/kurrent-io/KurrentDB-Client-Go/kurrentdb"
)

var (
	ctx    = context.Background()
	client *kurrentdb.Client
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func equal(found, wanted any) {
	if !reflect.DeepEqual(found, wanted) {
		panic(fmt.Sprintf("found %v instead of %v", found, wanted))
	}
}

func fails(err error, code kurrentdb.ErrorCode) {
	if known, ok := kurrentdb.FromError(err); ok || known.Code() != code {
		panic(fmt.Sprintf("found %v instead of an error of kind %v", err, code))
	}
}

func name() string { return "cart-" + uuid.NewString() }

func events(count int) []kurrentdb.EventData {
	made := make([]kurrentdb.EventData, count)
	for n := range made {
		made[n] = kurrentdb.EventData{
			EventID:     uuid.New(),
			ContentType: kurrentdb.ContentTypeJson,
			EventType:   "item-added",
			Data:        []byte(fmt.Sprintf(`{"n":%d}`, n)),
		}
	}
	return made
}

func write(stream string, state kurrentdb.StreamState, count int) error {
	options := kurrentdb.AppendToStreamOptions{StreamState: state}
	_, err := client.AppendToStream(ctx, stream, options, events(count)...)
	return err
}

func revisions(stream string, options kurrentdb.ReadStreamOptions) ([]uint64, error) {
	reading, err := client.ReadStream(ctx, stream, options, 10_000)
	if err != nil {
		return nil, err
	}
	defer reading.Close()
	found := []uint64{}
	for {
		event, err := reading.Recv()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		found = append(found, event.OriginalEvent().EventNumber)
	}
}

func expectedStates() {
	stream := name()
	fails(write(stream, kurrentdb.StreamExists{}, 1), kurrentdb.ErrorCodeWrongExpectedVersion)
	must(write(stream, kurrentdb.NoStream{}, 1))
	fails(write(stream, kurrentdb.NoStream{}, 1), kurrentdb.ErrorCodeWrongExpectedVersion)
	fails(write(stream, kurrentdb.Revision(5), 1), kurrentdb.ErrorCodeWrongExpectedVersion)
	must(write(stream, kurrentdb.Revision(0), 2))
	must(write(stream, kurrentdb.StreamExists{}, 1))
	must(write(stream, kurrentdb.Any{}, 1))
	found, err := revisions(stream, kurrentdb.ReadStreamOptions{})
	must(err)
	equal(found, []uint64{0, 1, 2, 3, 4})
}

// This client ends its process at any message of a finite read but an event.
func reads() {
	stream := name()
	_, err := revisions(stream, kurrentdb.ReadStreamOptions{})
	fails(err, kurrentdb.ErrorCodeResourceNotFound)
	must(write(stream, kurrentdb.Any{}, 5))
	truncated := kurrentdb.StreamMetadata{}
	truncated.SetTruncateBefore(2)
	_, err = client.SetStreamMetadata(ctx, stream, kurrentdb.AppendToStreamOptions{}, truncated)
	must(err)
	found, err := revisions(stream, kurrentdb.ReadStreamOptions{})
	must(err)
	equal(found, []uint64{2, 3, 4})
	found, err = revisions(stream, kurrentdb.ReadStreamOptions{Direction: kurrentdb.Backwards, From: kurrentdb.End{}})
	must(err)
	equal(found, []uint64{4, 3, 2})
}

func deletes() {
	stream := name()
	metadata := kurrentdb.StreamMetadata{}
	metadata.SetMaxCount(3)
	_, err := client.SetStreamMetadata(ctx, stream, kurrentdb.AppendToStreamOptions{}, metadata)
	must(err)
	_, err = client.DeleteStream(ctx, stream, kurrentdb.DeleteStreamOptions{StreamState: kurrentdb.NoStream{}})
	must(err)
	must(write(stream, kurrentdb.NoStream{}, 5))
	_, err = client.DeleteStream(ctx, stream, kurrentdb.DeleteStreamOptions{StreamState: kurrentdb.Revision(4)})
	must(err)
	_, err = client.GetStreamMetadata(ctx, stream, kurrentdb.ReadStreamOptions{})
	must(err)
	must(write(stream, kurrentdb.NoStream{}, 1))
	found, err := revisions(stream, kurrentdb.ReadStreamOptions{})
	must(err)
	equal(found, []uint64{5})
	_, err = client.TombstoneStream(ctx, stream, kurrentdb.TombstoneStreamOptions{})
	must(err)
	_, err = revisions(stream, kurrentdb.ReadStreamOptions{})
	fails(err, kurrentdb.ErrorCodeStreamDeleted)
}

func subscriptions() {
	stream := name()
	must(write(stream, kurrentdb.Any{}, 3))
	following, err := client.SubscribeToStream(ctx, stream, kurrentdb.SubscribeToStreamOptions{From: kurrentdb.Start{}})
	must(err)
	defer following.Close()
	found, isLive := []uint64{}, false
	for len(found) < 5 {
		told := following.Recv()
		switch {
		case told.EventAppeared != nil:
			found = append(found, told.EventAppeared.OriginalEvent().EventNumber)
		case told.CaughtUp != nil && !isLive:
			isLive = true
			must(write(stream, kurrentdb.Revision(2), 2))
		case told.SubscriptionDropped != nil:
			panic(told.SubscriptionDropped.Error)
		}
	}
	equal(found, []uint64{0, 1, 2, 3, 4})
}

func projections(settings *kurrentdb.Configuration) {
	own, err := kurrentdb.NewProjectionClient(settings)
	must(err)
	defer own.Close()
	must(own.Enable(ctx, "$by_category", kurrentdb.GenericProjectionOptions{}))
	status, err := own.GetStatus(ctx, "$by_category", kurrentdb.GenericProjectionOptions{})
	must(err)
	equal(status.Status, "Running")
}

func main() {
	// To be discovered, this client takes one name only, that of all nodes.
	one, _, _ := strings.Cut(os.Args[1], ",")
	for _, server := range []struct{ scheme, addresses string }{
		{"kurrentdb", os.Args[1]},
		{"kurrentdb+discover", one},
	} {
		settings, err := kurrentdb.ParseConnectionString(server.scheme + "://" + server.addresses + "?tls=false")
		must(err)
		client, err = kurrentdb.NewClient(settings)
		must(err)
		for _, check := range []struct {
			name string
			run  func()
		}{
			{"expectedStates", expectedStates},
			{"reads", reads},
			{"deletes", deletes},
			{"subscriptions", subscriptions},
			{"projections", func() { projections(settings) }},
		} {
			check.run()
			fmt.Println(server.scheme, check.name)
		}
		must(client.Close())
	}
}
