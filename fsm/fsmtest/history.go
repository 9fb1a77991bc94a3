package fsmtest

import (
	"bufio"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// entry is one entry of a log.
type entry struct {
	index, term uint64
	header      *logpb.Entry
}

// history is a log, as text one line per entry:
//
//	INDEX TERM {"version":1,"now":"…","commands":[…]}
//
// with the header as JSON. Empty lines and lines that begin with # are
// comments.
type history []entry

// add appends a step.
func (h *history) add(s step) {
	if !s.more || len(*h) == 0 {
		*h = append(*h, entry{s.meta.Index, s.meta.Term, &logpb.Entry{Version: s.meta.Version, Now: int64(s.meta.Now)}})
	}
	last := (*h)[len(*h)-1].header
	last.Commands = append(last.Commands, s.cmd)
}

// steps takes an entry apart, as it lies in the log: each command with what
// the machine is told about it.
func (e entry) steps() []step {
	m := fsm.Meta{Index: e.index, Term: e.term, Now: fsm.Time(e.header.Now), Version: e.header.Version}
	steps := make([]step, len(e.header.Commands))
	for i, c := range e.header.Commands {
		m.Session = fsm.SessionFrom(c.Session)
		steps[i] = step{m, c, i > 0}
		if c.Kind == logpb.Command_ENQUEUE {
			m.Offset += c.GetEnqueue().GetSize()
		}
	}
	return steps
}

// overWire encodes and decodes an entry.
func (e entry) overWire(t fataler) entry {
	b, err := e.header.MarshalVT()
	if err != nil {
		t.Fatalf("encode entry %d: %v", e.index, err)
	}
	header := new(logpb.Entry)
	if err := header.UnmarshalVT(b); err != nil {
		t.Fatalf("decode entry %d: %v", e.index, err)
	}
	return entry{e.index, e.term, header}
}

func (h history) String() string {
	var b strings.Builder
	for _, e := range h {
		text, err := protojson.Marshal(e.header)
		if err != nil {
			return err.Error()
		}
		fmt.Fprintf(&b, "%d %d %s\n", e.index, e.term, text)
	}
	return b.String()
}

// parseHistory is the inverse of String.
func parseHistory(text string) (history, error) {
	var h history
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		fields := strings.SplitN(line, " ", 3)
		e := entry{header: new(logpb.Entry)}
		if len(fields) != 3 {
			return nil, fmt.Errorf("no entry in %q", line)
		}
		if _, err := fmt.Sscan(fields[0], &e.index); err != nil {
			return nil, fmt.Errorf("index in %q: %w", line, err)
		}
		if _, err := fmt.Sscan(fields[1], &e.term); err != nil {
			return nil, fmt.Errorf("term in %q: %w", line, err)
		}
		if err := protojson.Unmarshal([]byte(fields[2]), e.header); err != nil {
			return nil, fmt.Errorf("header in %q: %w", line, err)
		}
		h = append(h, e)
	}
	return h, lines.Err()
}
