// Command porcupine judges histories of single keys by Porcupine, a checker of linearizability that was not written here.
//
// It reads histories from standard input, one after another for as long as the input lasts, and answers each with a line:
//
//	history NAME            begins a history
//	call THREAD OP          a call begins; a thread has one at a time
//	return THREAD OUTCOME   it was answered
//	end                     the history is complete; the answer is "NAME ok", "NAME illegal" or "NAME unknown"
//
// OP is one of: get; set V; insert V; update V; delete; swap WAS V. OUTCOME is: value V (of get); true or false (of the others);
// unknown: the call may have happened by then, or never. V and WAS are numbers above 0; 0 stands for "absent" in WAS and in the
// outcome of get. Lines come in the order in which things happened. A call that never returns may have happened at any time after it
// began, or never: it returns behind everything else, unknown.
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

func applies(state uint64, in op) bool {
	switch in.kind {
	case "set":
		return true
	case "insert":
		return state == 0
	case "update", "delete":
		return state != 0
	case "swap":
		return state == in.was
	}
	return false
}

func step(state, input, output interface{}) (bool, interface{}) {
	now, in, out := state.(uint64), input.(op), output.(outcome)
	if in.kind == "get" {
		return !out.known || out.value == now, now
	}
	done := applies(now, in)
	if out.known && done != (out.value == 1) {
		return false, now
	}
	if done {
		return true, in.value
	}
	return true, now
}

var model = porcupine.Model{
	Init:  func() interface{} { return uint64(0) },
	Step:  step,
	Equal: func(one, other interface{}) bool { return one.(uint64) == other.(uint64) },
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
	case len(words) == 1 && words[0] == "unknown":
		return outcome{}, nil
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
	for thread, id := range h.open {
		last := porcupine.Event{ClientId: int(thread), Kind: porcupine.ReturnEvent, Value: outcome{}, Id: id}
		h.events = append(h.events, last)
	}
	switch porcupine.CheckEventsTimeout(model, h.events, timeout) {
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
