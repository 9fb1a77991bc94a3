package archive

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// sample is a backup of two queues, one of which was begun anew.
func sample(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.JSON(Header, Info{ID: []byte("0123456789abcdef"), Queues: 2}))
	must(w.Frame(Definitions, []byte("definitions")))
	must(w.JSON(Queue, Section{Name: []byte("a"), ID: 1}))
	must(w.Message([]byte("void"), []byte("void")))
	must(w.Frame(Discard))
	must(w.JSON(Queue, Section{Name: []byte("a"), ID: 1}))
	must(w.Message([]byte("state"), []byte("payload")))
	must(w.JSON(QueueEnd, Total{Messages: 1, Bytes: 7}))
	must(w.JSON(Queue, Section{Name: []byte("b"), ID: 2}))
	must(w.JSON(QueueEnd, Total{}))
	must(w.Close())
	return b.Bytes()
}

// TestWhole reads a backup, and what a restore of one of its queues gets.
func TestWhole(t *testing.T) {
	raw := sample(t)
	v, err := Verify(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if n, size := v.Messages(); n != 1 || size != 7 || len(v.Sections) != 2 {
		t.Fatalf("%d messages of %d bytes in %d queues", n, size, len(v.Sections))
	}
	var out bytes.Buffer
	if err := v.Excerpt(bytes.NewReader(raw), &out, func(s Section) bool { return string(s.Name) == "a" }); err != nil {
		t.Fatal(err)
	}
	var kinds []Kind
	for r := NewReader(&out); ; {
		kind, body, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if kind == Message {
			if state, payload, err := CutMessage(body); err != nil || string(state) != "state" || string(payload) != "payload" {
				t.Errorf("message %q %q, %v", state, payload, err)
			}
		}
		kinds = append(kinds, kind)
	}
	if want := []Kind{Header, Definitions, Index, Queue, Message, QueueEnd}; !bytes.Equal(asBytes(kinds), asBytes(want)) {
		t.Errorf("frames %v, not %v", kinds, want)
	}
}

func asBytes(kinds []Kind) (b []byte) {
	for _, k := range kinds {
		b = append(b, byte(k))
	}
	return b
}

// TestNotWhole cuts a backup at each byte, and changes each of its bytes.
func TestNotWhole(t *testing.T) {
	raw := sample(t)
	for n := range raw {
		if _, err := Verify(bytes.NewReader(raw[:n])); !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrFormat) {
			t.Errorf("cut at %d: %v", n, err)
		}
		changed := bytes.Clone(raw)
		changed[n] ^= 1
		if _, err := Verify(bytes.NewReader(changed)); err == nil {
			t.Errorf("byte %d changed: no error", n)
		}
	}
	if _, err := Verify(bytes.NewReader(append(bytes.Clone(raw), 0))); !errors.Is(err, ErrDamaged) {
		t.Errorf("a byte more: %v", err)
	}
}

// TestFailed shows why a backup breaks off, if its writer has said so.
func TestFailed(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	if err := w.Frame(Failed, []byte("no leader")); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(&b); !errors.Is(err, ErrTruncated) || !bytes.Contains([]byte(err.Error()), []byte("no leader")) {
		t.Errorf("%v", err)
	}
}
