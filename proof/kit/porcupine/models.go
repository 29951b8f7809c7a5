package main

import (
	"encoding/json"
	"fmt"

	"github.com/anishathalye/porcupine"
)

// What an operation asked and what was answered; only the fields of its kind are there.
type call struct {
	Operation string
	Input     input
	// Without an answer it may take effect at any later time, or never.
	Output *output
	// Of an append: another attempt has the same ids.
	Repeated bool
}

type input struct {
	Expected string   `json:"expected"`
	Revision uint64   `json:"revision"`
	Ids      []string `json:"ids"`
	From     *string  `json:"from"`
	To       string   `json:"to"`
}

type output struct {
	Is     string   `json:"is"`
	First  uint64   `json:"first"`
	Length *uint64  `json:"length"`
	Ids    []string `json:"ids"`
	Value  *string  `json:"value"`
	Seat   string   `json:"seat"`
}

// Which model judges an operation.
var kinds = map[string]string{
	"append": "stream", "read_stream": "stream",
	"write": "register", "compare_and_set": "register", "read_register": "register",
	"reserve": "seat", "cancel": "seat", "pay": "seat", "give_back": "seat", "read_seat": "seat",
}

var models = map[string]porcupine.Model{
	"stream": {
		Init: func() interface{} { return (*event)(nil) },
		Step: func(state, in, _ interface{}) (bool, interface{}) {
			return deterministic(stepStream(state.(*event), in.(*call)))
		},
		Equal: func(a, b interface{}) bool { return a.(*event).equals(b.(*event)) },
		Hash:  func(state interface{}) uint64 { return state.(*event).digest() },
	},
	"register": {
		Init: func() interface{} { return "" },
		Step: func(state, in, _ interface{}) (bool, interface{}) {
			return deterministic(stepRegister(state.(string), in.(*call)))
		},
	},
	"seat": {
		Init: func() interface{} { return "free" },
		Step: func(state, in, _ interface{}) (bool, interface{}) {
			return deterministic(stepSeat(state.(string), in.(*call)))
		},
	},
}

func deterministic[State any](next State, fits bool) (bool, interface{}) {
	return fits, next
}

// A stream is its last event, which knows the one before it; an empty one is nil.
type event struct {
	before *event
	id     string
	length uint64
	hash   uint64
}

func (last *event) len() uint64 {
	if last == nil {
		return 0
	}
	return last.length
}

func (last *event) digest() uint64 {
	if last == nil {
		return 14695981039346656037
	}
	return last.hash
}

func (last *event) with(id string) *event {
	hash := last.digest()
	for _, letter := range []byte(id) {
		hash = (hash ^ uint64(letter)) * 1099511628211
	}
	return &event{last, id, last.len() + 1, hash}
}

// Events that lead to the same event from different sides are compared one by one.
func (last *event) equals(other *event) bool {
	if last.len() != other.len() || last.digest() != other.digest() {
		return false
	}
	for ; last != other; last, other = last.before, other.before {
		if last.id != other.id {
			return false
		}
	}
	return true
}

func (last *event) endsWith(ids []string) bool {
	for i := len(ids) - 1; i >= 0; i-- {
		if last == nil || last.id != ids[i] {
			return false
		}
		last = last.before
	}
	return true
}

// How many events come before the first one of these, if they are there, one after the other; whether any is there.
func (last *event) find(ids []string) (first uint64, whole, any bool) {
	for ; last != nil; last = last.before {
		if last.id == ids[len(ids)-1] && last.endsWith(ids) {
			return last.length - uint64(len(ids)), true, true
		}
		for _, id := range ids {
			any = any || last.id == id
		}
	}
	return 0, false, any
}

func holds(in *input, length uint64) bool {
	switch in.Expected {
	case "no_stream":
		return length == 0
	case "stream_exists":
		return length > 0
	case "exact":
		return length == in.Revision+1
	}
	return true
}

// Appends are idempotent by their ids: what is stored already is not stored again, and the answer is that of then.
func stepStream(last *event, asked *call) (*event, bool) {
	if asked.Operation == "read_stream" {
		seen := asked.Output
		isEmpty := len(seen.Ids) == 0
		return last, *seen.Length == last.len() && isEmpty == (last == nil) && last.endsWith(seen.Ids)
	}
	in, out := &asked.Input, asked.Output
	if asked.Repeated {
		if first, whole, any := last.find(in.Ids); any {
			return last, whole && (out == nil || out.Is == "stored" && out.First == first)
		}
	}
	fits := holds(in, last.len())
	if out != nil && out.Is == "refused" {
		// Without a length it was refused for something that this stream does not tell.
		return last, out.Length == nil || *out.Length == last.len() && !fits
	}
	if !fits {
		return last, out == nil
	}
	if out != nil && out.First != last.len() {
		return last, false
	}
	for _, id := range in.Ids {
		last = last.with(id)
	}
	return last, true
}

// No two operations write the same value; the empty one is that of a register which nobody has written.
func stepRegister(value string, asked *call) (string, bool) {
	in, out := &asked.Input, asked.Output
	switch asked.Operation {
	case "write":
		return in.To, true
	case "read_register":
		return value, value == valueOf(out.Value)
	}
	fits := value == valueOf(in.From)
	if fits {
		return in.To, out == nil || out.Is == "done"
	}
	return value, out == nil || out.Is == "refused"
}

func valueOf(value *string) string {
	if value == nil {
		return ""
	}
	return *value
}

func stepSeat(seat string, asked *call) (string, bool) {
	from, to := "reserved", "paid"
	switch asked.Operation {
	case "read_seat":
		return seat, asked.Output.Seat == seat
	case "reserve":
		from, to = "free", "reserved"
	case "cancel", "give_back":
		from, to = "reserved", "free"
	}
	if seat == from {
		return to, asked.Output == nil || asked.Output.Is == "done"
	}
	out := asked.Output
	return seat, out == nil || out.Is == "refused" && (out.Seat == "" || out.Seat == seat)
}

// What is wrong with the form of an operation.
func (asked *call) validate() error {
	out := asked.Output
	switch asked.Operation {
	case "append":
		if len(asked.Input.Ids) == 0 {
			return fmt.Errorf("an append without events")
		}
		if out != nil && out.Is != "stored" && out.Is != "refused" {
			return fmt.Errorf("the output is %q", out.Is)
		}
	case "read_stream":
		if out == nil || out.Length == nil {
			return fmt.Errorf("a read without a length")
		}
	case "read_register", "read_seat":
		if out == nil {
			return fmt.Errorf("a read without an answer")
		}
	default:
		if out != nil && out.Is != "done" && out.Is != "refused" {
			return fmt.Errorf("the output is %q", out.Is)
		}
	}
	return nil
}

func (asked *call) String() string {
	in, _ := json.Marshal(asked.Input)
	out, _ := json.Marshal(asked.Output)
	return fmt.Sprintf("%s %s -> %s", asked.Operation, in, out)
}
