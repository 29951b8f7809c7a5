// Command porcupine judges histories of Gesta's lab for linearizability, by the checker of the same name.
//
// The form of histories is described in lab/README.md. Each key is judged by itself: for the answers about one stream,
// register or seat there must be one order of all operations in which every answer is true, and in which nothing comes
// before what had been answered before it was asked.
//
// Usage: porcupine [-limit TIME] FILE...
//
// A line is printed for each key that is not linearizable, with the smallest beginning of its history that is not. The
// exit code is 0 if all are linearizable, 1 if some are not, 2 if some could not be decided in time, 3 for a file that is
// no history.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// A line of a history.
type line struct {
	Key       string          `json:"key"`
	Client    int             `json:"client"`
	Call      int64           `json:"call"`
	Return    *int64          `json:"return"`
	Operation string          `json:"operation"`
	Input     json.RawMessage `json:"input"`
	Output    *output         `json:"output"`
}

// When an operation without an answer has ended.
const never = math.MaxInt64

func main() {
	limit := flag.Duration("limit", time.Minute, "how long a key may take")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: porcupine [-limit TIME] FILE...")
		os.Exit(3)
	}
	var keys, operations, wrong, unknown int
	for _, name := range flag.Args() {
		file, err := os.Open(name)
		if err != nil {
			fail(name, err)
		}
		histories, count, err := read(file)
		file.Close()
		if err != nil {
			fail(name, err)
		}
		operations += count
		for _, key := range sortedKeys(histories) {
			history := histories[key]
			keys++
			switch judge(history, *limit) {
			case porcupine.Illegal:
				wrong++
				fmt.Printf("NOT LINEARIZABLE %s: %s\n", key, smallest(history, *limit))
			case porcupine.Unknown:
				unknown++
				fmt.Printf("UNDECIDED %s\n", key)
			}
		}
	}
	fmt.Printf("%d operations of %d keys: %d not linearizable, %d undecided\n", operations, keys, wrong, unknown)
	switch {
	case wrong > 0:
		os.Exit(1)
	case unknown > 0:
		os.Exit(2)
	}
}

func fail(name string, err error) {
	fmt.Fprintf(os.Stderr, "porcupine: %s: %v\n", name, err)
	os.Exit(3)
}

func sortedKeys(histories map[string][]porcupine.Operation) []string {
	keys := make([]string, 0, len(histories))
	for key := range histories {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// The operations of each key, and how many there are.
func read(from io.Reader) (map[string][]porcupine.Operation, int, error) {
	histories := map[string][]porcupine.Operation{}
	decoder := json.NewDecoder(bufio.NewReader(from))
	decoder.DisallowUnknownFields()
	count := 0
	for {
		number := count + 1
		var one line
		if err := decoder.Decode(&one); err == io.EOF {
			break
		} else if err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", number, err)
		}
		asked := &call{Operation: one.Operation, Output: one.Output}
		if one.Input != nil {
			if err := json.Unmarshal(one.Input, &asked.Input); err != nil {
				return nil, 0, fmt.Errorf("line %d: %w", number, err)
			}
		}
		end := int64(never)
		if one.Return != nil {
			end = *one.Return
		}
		if kinds[one.Operation] == "" {
			return nil, 0, fmt.Errorf("line %d: the operation %q", number, one.Operation)
		}
		if (one.Return == nil) != (one.Output == nil) || end < one.Call {
			return nil, 0, fmt.Errorf("line %d: the time of the answer", number)
		}
		if err := asked.validate(); err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", number, err)
		}
		count++
		histories[one.Key] = append(histories[one.Key], porcupine.Operation{
			ClientId: one.Client, Input: asked, Call: one.Call, Output: asked.Output, Return: end,
		})
	}
	for key, history := range histories {
		kind := kinds[history[0].Input.(*call).Operation]
		for _, operation := range history {
			if kinds[operation.Input.(*call).Operation] != kind {
				return nil, 0, fmt.Errorf("%s: operations of different kinds", key)
			}
		}
		histories[key] = settled(history)
	}
	return histories, count, nil
}

// Marks the attempts of an append that was sent several times. A refusal of it is the last word: what is not known of the
// attempts before had no effect, and never will have.
func settled(history []porcupine.Operation) []porcupine.Operation {
	attempts, refused := map[string]int{}, map[string]int64{}
	for _, operation := range history {
		asked := operation.Input.(*call)
		if asked.Operation != "append" {
			continue
		}
		first := asked.Input.Ids[0]
		attempts[first]++
		if asked.Output != nil && asked.Output.Is == "refused" && operation.Call > refused[first] {
			refused[first] = operation.Call
		}
	}
	kept := history[:0]
	for _, operation := range history {
		asked := operation.Input.(*call)
		if asked.Operation == "append" {
			first := asked.Input.Ids[0]
			asked.Repeated = attempts[first] > 1
			if asked.Output == nil && operation.Call < refused[first] {
				continue
			}
		}
		kept = append(kept, operation)
	}
	return kept
}

func judge(history []porcupine.Operation, limit time.Duration) porcupine.CheckResult {
	if len(history) == 0 {
		return porcupine.Ok
	}
	model := models[kinds[history[0].Input.(*call).Operation]]
	return porcupine.CheckOperationsTimeout(model, history, limit)
}

// The shortest beginning of a history that is not linearizable, and the answer with which it ends.
func smallest(history []porcupine.Operation, limit time.Duration) string {
	var answered []porcupine.Operation
	for _, operation := range history {
		if operation.Return != never {
			answered = append(answered, operation)
		}
	}
	sort.Slice(answered, func(i, j int) bool { return answered[i].Return < answered[j].Return })
	// Every beginning of a linearizable history is linearizable.
	at := sort.Search(len(answered), func(i int) bool {
		return judge(beginning(history, answered[i].Return), limit) == porcupine.Illegal
	})
	if at == len(answered) {
		return "no beginning of it could be decided in time"
	}
	last := answered[at]
	return fmt.Sprintf("the first %d of %d answers, the last of which is that of client %d, %d to %d: %v",
		at+1, len(answered), last.ClientId, last.Call, last.Return, last.Input)
}

// What had happened at a time: what was under way then has no answer.
func beginning(history []porcupine.Operation, end int64) []porcupine.Operation {
	var begun []porcupine.Operation
	for _, operation := range history {
		if operation.Call > end {
			continue
		}
		if operation.Return > end {
			asked := *operation.Input.(*call)
			switch asked.Operation {
			case "read_stream", "read_register", "read_seat":
				continue
			}
			asked.Output = nil
			operation.Input, operation.Output, operation.Return = &asked, nil, never
		}
		begun = append(begun, operation)
	}
	return begun
}
