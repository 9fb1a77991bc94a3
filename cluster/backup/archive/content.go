package archive

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// Info is the body of a Header.
type Info struct {
	ID      []byte `json:"id"` // 16 random bytes: names the backup
	Product string `json:"product_version"`
	Cluster string `json:"cluster_name"`
	Begun   int64  `json:"begun"` // ms since the epoch
	Queues  int    `json:"queues"`
}

// Section is the body of a Queue: what the messages that follow are the cut of. Names
// are bytes because a client need not send UTF-8.
type Section struct {
	VHost   []byte   `json:"vhost"`
	Name    []byte   `json:"name"`
	ID      uint64   `json:"id"`
	StoreOf []byte   `json:"store_of,omitempty"` // exchange whose delayed messages it holds
	Index   uint64   `json:"index"`              // of the entry that the cut is at
	Term    uint64   `json:"term"`
	Clock   int64    `json:"clock"`             // of the queue, ms since the epoch
	Sources []Source `json:"sources,omitempty"` // queues whose letters came here
}

// Source is a queue, by id, and the number of the next of its letters.
type Source struct {
	ID   uint64 `json:"id"`
	Next uint64 `json:"next"`
}

// Total is the body of a QueueEnd.
type Total struct {
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`   // of their payloads
	Settled  uint64 `json:"settled"` // messages of the cut that had gone before they were read
}

// JSON writes a frame with a JSON body.
func (w *Writer) JSON(kind Kind, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return w.Frame(kind, b)
}

// Message writes a message: its encoded record and its payload.
func (w *Writer) Message(state, payload []byte) error {
	return w.Frame(Message, binary.AppendUvarint(nil, uint64(len(state))), state, payload)
}

// CutMessage is the inverse of Writer.Message.
func CutMessage(body []byte) (state, payload []byte, err error) {
	n, size := binary.Uvarint(body)
	if size <= 0 || n > uint64(len(body)-size) {
		return nil, nil, fmt.Errorf("%w: a message without a record", ErrDamaged)
	}
	return body[size : size+int(n)], body[size+int(n):], nil
}

// Verified is what a whole backup holds.
type Verified struct {
	Info     Info
	Sections []Section // of the queues, in order, without those that were begun anew
	Totals   []Total   // of each
	Frames   uint64    // in all
	at       []uint64  // number of the frame that begins each section
}

// Messages is the number of messages, and of the bytes of their payloads.
func (v *Verified) Messages() (messages, size uint64) {
	for _, t := range v.Totals {
		messages, size = messages+t.Messages, size+t.Bytes
	}
	return messages, size
}

// Verify reads a stream to its end, and checks that it is a whole backup: every
// checksum, the order of the frames, and what each queue is said to have.
func Verify(from io.Reader) (*Verified, error) {
	v, r := &Verified{}, NewReader(from)
	var open *Section
	var found Total
	for want := Header; ; v.Frames++ {
		kind, body, err := r.Next()
		if err == io.EOF && want == Queue && open == nil {
			return v, nil
		}
		if err == io.EOF {
			err = fmt.Errorf("%w: a frame is missing", ErrDamaged)
		}
		if err != nil {
			return nil, err
		}
		ok := kind == want
		switch kind {
		case Header:
			want, err = Definitions, json.Unmarshal(body, &v.Info)
		case Definitions:
			want = Queue
		case Queue:
			ok = ok && open == nil
			open, found = &Section{}, Total{}
			err = json.Unmarshal(body, open)
			v.at = append(v.at, v.Frames)
		case Message:
			var payload []byte
			_, payload, err = CutMessage(body)
			ok, found = open != nil, Total{found.Messages + 1, found.Bytes + uint64(len(payload)), 0}
		case Discard:
			ok, open = open != nil, nil
			v.at = v.at[:max(len(v.at)-1, 0)]
		case QueueEnd:
			if ok = open != nil; ok {
				err = v.close(open, found, body)
				open = nil
			}
		default:
			ok = false
		}
		if err == nil && !ok {
			err = fmt.Errorf("%w: frame %d is out of place", ErrDamaged, v.Frames+1)
		}
		if err != nil {
			return nil, err
		}
	}
}

// close ends a section.
func (v *Verified) close(s *Section, found Total, body []byte) error {
	var t Total
	if err := json.Unmarshal(body, &t); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if t.Messages != found.Messages || t.Bytes != found.Bytes {
		return fmt.Errorf("%w: queue %q has %d messages, but %d were announced", ErrDamaged, s.Name, found.Messages, t.Messages)
	}
	v.Sections, v.Totals = append(v.Sections, *s), append(v.Totals, t)
	return nil
}

// Excerpt writes what a restore needs of a backup that was verified: its definitions,
// and the sections that keep accepts, with an index of all sections before them.
func (v *Verified) Excerpt(from io.Reader, to io.Writer, keep func(Section) bool) error {
	r, w := NewReader(from), NewWriter(to)
	for frame, copying := uint64(0), true; ; frame++ {
		kind, body, err := r.Next()
		if err == io.EOF {
			return w.Close()
		}
		if err != nil {
			return err
		}
		if kind == Queue {
			i, final := slices.BinarySearch(v.at, frame)
			copying = final && keep(v.Sections[i])
		}
		if !copying {
			continue
		}
		if err := w.Frame(kind, body); err != nil {
			return err
		}
		if kind == Definitions {
			if err := w.JSON(Index, v.Sections); err != nil {
				return err
			}
		}
	}
}
