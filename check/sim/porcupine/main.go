// Command porcupine judges histories of single keys by Porcupine, a checker of linearizability that was not written here.
//
// It reads histories from standard input, one after another for as long as the input lasts, and answers each with a line:
//
//	history NAME            begins a history
//	call THREAD OP          a call begins; a thread has one at a time
//	return THREAD OUTCOME   it was answered
//	end                     the history is complete; the answer is "NAME ok", "NAME illegal" or "NAME unknown"
//
// OP is one of: get; set V; insert V; update V; delete; swap WAS V. OUTCOME is: value V (of get); true or false (of the others).
// V and WAS are numbers above 0; 0 stands for "absent" in WAS and in the outcome of get. Lines come in the order in which things happened. A call that never returns may have happened at any time after it
// began, or never. Its value must not be seen anywhere: a write whose value was seen did happen, and whoever writes the history has it
// return true before the first call that saw it returns.
//
// "unknown" means that the time (-timeout, 10 s unless told) was over first. Anything that is not understood ends the program with
// a message and status 2.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type op struct {
	kind  string
	was   uint64
	value uint64
}

// outcome is what a call was told; unknown if it never returned.
type outcome struct {
	known bool
	value uint64
}

// state is what a key holds, and how many writes are under way that never returned and may happen at any time from now on. Their
// values were never seen, so all of them are the same: unseen.
type state struct {
	value                           uint64
	deletes, sets, inserts, updates int
}

const unseen = ^uint64(0)

func applies(value uint64, in op) bool {
	switch in.kind {
	case "set":
		return true
	case "insert":
		return value == 0
	case "update", "delete":
		return value != 0
	case "swap":
		return value == in.was
	}
	return false
}

// plain is what comes of a call if nothing that is under way happens before it; false if it was told something else.
func plain(now state, in op, out outcome) (state, bool) {
	if in.kind == "get" {
		return now, !out.known || out.value == now.value
	}
	done := applies(now.value, in)
	if out.known && done != (out.value == 1) {
		return now, false
	}
	if done {
		now.value = in.value
	}
	return now, true
}

// before has the states after one of the writes that are under way, those that serve for less first. One is enough to make a key
// present, absent or another; and what fits without one needs none: it can happen later as well.
func before(now state) []state {
	var states []state
	if now.value != 0 && now.deletes > 0 {
		next := now
		next.value, next.deletes = 0, now.deletes-1
		states = append(states, next)
	}
	next := now
	next.value = unseen
	switch {
	case now.value == 0 && now.inserts > 0:
		next.inserts--
	case now.value != 0 && now.updates > 0:
		next.updates--
	case now.sets > 0:
		next.sets--
	default:
		return states
	}
	return append(states, next)
}

func step(at interface{}, input, output interface{}) []interface{} {
	now, in, out := at.(state), input.(op), output.(outcome)
	switch in.kind {
	case "under-way delete":
		now.deletes++
		return []interface{}{now}
	case "under-way set":
		now.sets++
		return []interface{}{now}
	case "under-way insert":
		now.inserts++
		return []interface{}{now}
	case "under-way update":
		now.updates++
		return []interface{}{now}
	}
	if next, fits := plain(now, in, out); fits {
		return []interface{}{next}
	}
	var states []interface{}
	for _, other := range before(now) {
		if next, fits := plain(other, in, out); fits {
			states = append(states, next)
		}
	}
	return states
}

var model = (&porcupine.NondeterministicModel{
	Init:  func() []interface{} { return []interface{}{state{}} },
	Step:  step,
	Equal: func(one, other interface{}) bool { return one.(state) == other.(state) },
}).ToModel()

// underWay is the call that stands for one that never returned: it says from when on that may happen. A swap from a value is none:
// it applies to that value alone.
func underWay(in op) (op, bool) {
	if in.kind == "swap" && in.was == 0 {
		in.kind = "insert"
	}
	switch in.kind {
	case "set", "insert", "update", "delete":
		return op{kind: "under-way " + in.kind}, true
	}
	return in, false
}

type history struct {
	name   string
	events []porcupine.Event
	open   map[uint64]int
	calls  int
}

func parseOp(words []string) (op, error) {
	in := op{kind: words[0]}
	numbers := map[string]int{"get": 0, "delete": 0, "set": 1, "insert": 1, "update": 1, "swap": 2}
	want, known := numbers[in.kind]
	if !known || len(words) != want+1 {
		return in, fmt.Errorf("no such operation: %s", strings.Join(words, " "))
	}
	var parsed [2]uint64
	for at, word := range words[1:] {
		number, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return in, err
		}
		parsed[at] = number
	}
	switch want {
	case 1:
		in.value = parsed[0]
	case 2:
		in.was, in.value = parsed[0], parsed[1]
	}
	return in, nil
}

func parseOutcome(words []string) (outcome, error) {
	switch {
	case len(words) == 1 && words[0] == "true":
		return outcome{known: true, value: 1}, nil
	case len(words) == 1 && words[0] == "false":
		return outcome{known: true}, nil
	case len(words) == 2 && words[0] == "value":
		value, err := strconv.ParseUint(words[1], 10, 64)
		return outcome{known: true, value: value}, err
	}
	return outcome{}, fmt.Errorf("no such outcome: %s", strings.Join(words, " "))
}

func (h *history) add(words []string) error {
	if len(words) < 3 {
		return fmt.Errorf("words are missing")
	}
	thread, err := strconv.ParseUint(words[1], 10, 64)
	if err != nil {
		return err
	}
	event := porcupine.Event{ClientId: int(thread)}
	id, open := h.open[thread]
	switch {
	case words[0] == "call" && !open:
		in, err := parseOp(words[2:])
		if err != nil {
			return err
		}
		event.Kind, event.Value, event.Id = porcupine.CallEvent, in, h.calls
		h.open[thread] = h.calls
		h.calls++
	case words[0] == "return" && open:
		out, err := parseOutcome(words[2:])
		if err != nil {
			return err
		}
		event.Kind, event.Value, event.Id = porcupine.ReturnEvent, out, id
		delete(h.open, thread)
	default:
		return fmt.Errorf("a thread has one call at a time, and each returns once")
	}
	h.events = append(h.events, event)
	return nil
}

func (h *history) judge(timeout time.Duration) string {
	forever := map[int]bool{}
	for _, id := range h.open {
		forever[id] = true
	}
	var events, last []porcupine.Event
	for _, event := range h.events {
		if event.Kind != porcupine.CallEvent || !forever[event.Id] {
			events = append(events, event)
			continue
		}
		in, short := underWay(event.Value.(op))
		event.Value = in
		end := porcupine.Event{ClientId: event.ClientId, Kind: porcupine.ReturnEvent, Value: outcome{}, Id: event.Id}
		events = append(events, event)
		if short {
			events = append(events, end)
		} else {
			last = append(last, end)
		}
	}
	switch porcupine.CheckEventsTimeout(model, append(events, last...), timeout) {
	case porcupine.Ok:
		return "ok"
	case porcupine.Illegal:
		return "illegal"
	}
	return "unknown"
}

func run(timeout time.Duration) error {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 0, 1<<16), 1<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	var current *history
	for number := 1; lines.Scan(); number++ {
		words := strings.Fields(lines.Text())
		wrong := func(err error) error { return fmt.Errorf("line %d: %q: %w", number, lines.Text(), err) }
		switch {
		case len(words) == 2 && words[0] == "history" && current == nil:
			current = &history{name: words[1], open: map[uint64]int{}}
		case len(words) == 1 && words[0] == "end" && current != nil:
			fmt.Fprintf(out, "%s %s\n", current.name, current.judge(timeout))
			if err := out.Flush(); err != nil {
				return err
			}
			current = nil
		case current != nil:
			if err := current.add(words); err != nil {
				return wrong(err)
			}
		default:
			return wrong(fmt.Errorf("a history begins with its name"))
		}
	}
	return lines.Err()
}

func main() {
	timeout := flag.Duration("timeout", 10*time.Second, "how long one history may take")
	flag.Parse()
	if err := run(*timeout); err != nil {
		fmt.Fprintln(os.Stderr, "porcupine:", err)
		os.Exit(2)
	}
}
