package peer

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
)

// A long message goes in pieces, and what another class has to send goes
// between them; it arrives as it was, with what was queued before and behind
// it in its class in the same order.
func TestLongMessagesLetOthersPass(t *testing.T) {
	o := newOutbox(time.Hour)
	body := make([]byte, 3<<20)
	for i := range body {
		body[i] = byte(i * 7 >> 3)
	}
	o.mustPush(t, 1, 100, classRaft, urgent)
	if err := o.push(header{kind: kindAppend, number: 2}, rawBody(body), classRaft, urgent); err != nil {
		t.Fatal(err)
	}
	o.mustPush(t, 3, 100, classRaft, urgent)
	var a assembler
	var got []uint64
	took := 0
	for {
		turn := o.take(new(rate))
		if len(turn) == 0 {
			break
		}
		if took++; took == 3 {
			o.mustPush(t, 9, 0, classOwn, urgent)
		}
		for _, b := range turn {
			charged := b.charged
			parts := b.seal()
			msg := parts.Materialize()
			parts.Free()
			if len(msg) > longMessage+headerSize {
				t.Errorf("%d bytes at once", len(msg))
			}
			if err := a.frames(msg, func(f frame) error {
				got = append(got, f.number)
				if f.number == 2 && !bytes.Equal(f.body, body) {
					t.Error("the long one has changed")
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			o.sent(charged)
		}
	}
	if len(got) != 4 || got[0] != 9 || got[1] != 1 || got[2] != 2 || got[3] != 3 {
		t.Errorf("arrived: %v", got)
	}
	if o.backlog.Load() != 0 || o.queued != [classes]int{} {
		t.Errorf("%d bytes are still counted, %v", o.backlog.Load(), o.queued)
	}
}

// Memory for a message is taken as its pieces come, and copied at most half at once.
func TestMemoryForPieces(t *testing.T) {
	for _, total := range []uint64{1, pieceSize, longMessage + 1, 3<<20 + 1, MaxMessage - 1, MaxMessage} {
		var have, copied uint64
		for size := min(pieceSize, total); ; size = min(size+pieceSize, total) {
			if size > have {
				at := size - min(pieceSize, total)
				have, copied = memoryFor(size, total), copied+at
				if have < size || have > total || have > max(2*size, 4*pieceSize) || at > total/2+pieceSize {
					t.Errorf("memory for %d when %d of %d have come, and %d are copied", have, size, total, at)
				}
			}
			if size == total {
				break
			}
		}
		if have != total || copied > total {
			t.Errorf("of %d bytes %d are copied, and there is memory for %d", total, copied, have)
		}
	}
}

// Pieces that do not make up a message end the stream.
func TestPiecesThatDoNotFit(t *testing.T) {
	piece := func(class uint32, total uint64, size int) []byte {
		b := make([]byte, headerSize+size)
		header{kind: kindPiece, arg: class, number: total}.put(b, size)
		return b
	}
	for _, tc := range []struct {
		name   string
		pieces [][]byte
		ok     bool
	}{
		{"begun", [][]byte{piece(0, 100, 40)}, true},
		{"of two classes", [][]byte{piece(0, 100, 40), piece(1, 200, 150)}, true},
		{"no such class", [][]byte{piece(uint32(classes), 100, 40)}, false},
		{"too long", [][]byte{piece(0, MaxMessage+1, 40)}, false},
		{"more than was said", [][]byte{piece(0, 100, 40), piece(0, 100, 61)}, false},
		{"of another message", [][]byte{piece(0, 100, 40), piece(0, 90, 40)}, false},
		{"empty", [][]byte{piece(0, 100, 0)}, false},
		{"of an empty message", [][]byte{piece(0, 0, 0)}, false},
		{"not a frame inside", [][]byte{piece(0, 40, 40)}, false},
		{"a piece inside", [][]byte{append(piece(0, 57, 57)[:headerSize:headerSize], piece(0, 57, 40)...)}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, chunk := range []int{1 << 10, 30, headerSize, 1} {
				var a assembler
				in := inMessage{assembler: &a}
				var err error
				for _, p := range tc.pieces {
					in.receive(chunked(p, chunk))
					err = errors.Join(err, a.message(&in, func(frame) error { return nil }))
				}
				if (err == nil) != tc.ok || err != nil && !errors.Is(err, errProtocol) && !errors.Is(err, errShort) {
					t.Errorf("received %d bytes at a time: %v", chunk, err)
				}
			}
		})
	}
}

// chunked is a message as gRPC receives it.
func chunked(msg []byte, size int) (data mem.BufferSlice) {
	for part := range slices.Chunk(msg, size) {
		data = append(data, mem.SliceBuffer(part))
	}
	return data
}

// A piece is put in its place however it is received, and not copied before if it is alone in its message.
func TestPiecesAreReceivedInPlace(t *testing.T) {
	inner := numberedFrame(kindPing, 7, bytes.Repeat([]byte("0123456789"), 100_000))
	for name, tc := range map[string]struct {
		chunk   int
		with    []byte // in the message of each piece
		inPlace bool
	}{
		"frames of HTTP/2":   {frameSize, nil, true},
		"only the header":    {headerSize, nil, true},
		"a cut header":       {headerSize - 1, nil, false},
		"with another frame": {frameSize, numberedFrame(kindPing, 8, nil), false},
	} {
		var a assembler
		in := inMessage{assembler: &a}
		var got []frame
		for rest := inner; len(rest) > 0; {
			n := min(len(rest), pieceSize)
			p := pieceFrame(classApp, len(inner), n)
			copy(p[headerSize:], rest[:n])
			rest = rest[n:]
			in.receive(chunked(append(p, tc.with...), tc.chunk))
			if in.isPiece != tc.inPlace || in.isPiece && in.err == nil && len(in.data) != 0 && len(rest) > 0 {
				t.Errorf("%s: put in its place: %v, %v", name, in.isPiece, in.err)
			}
			if err := a.message(&in, func(f frame) error { got = append(got, f); return nil }); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		i := slices.IndexFunc(got, func(f frame) bool { return f.number == 7 })
		if i < 0 || !bytes.Equal(got[i].body, inner[headerSize:]) || (len(got) == 1) != (tc.with == nil) {
			t.Errorf("%s: %d frames, the long one is number %d", name, len(got), i)
		}
	}
}

// Who can wait is not refused; the wait ends with the link.
func TestSendWait(t *testing.T) {
	o := newOutbox(time.Hour)
	o.mustPush(t, 1, maxBacklog-headerSize, classApp, urgent)
	if err := o.pushMessage(FirstKind, []byte("x"), nil); !errors.Is(err, ErrBacklog) {
		t.Fatal(err)
	}
	m := &Mesh{peers: map[string]*peer{"n2": {}}}
	m.peers["n2"].link.Store(&link{out: o})
	result := make(chan error, 1)
	wait := func() { result <- m.SendWait("n2", FirstKind, []byte("x")) }
	waiting := func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.freed != nil
	}
	go wait()
	mustWait(t, waiting, "nobody waits")
	o.sent([classes]int{classApp: 1 << 20})
	if err := mustReceive(t, result, "room"); err != nil {
		t.Fatal(err)
	}
	o.mustPush(t, 2, 1<<20, classApp, urgent)
	go wait()
	mustWait(t, waiting, "nobody waits")
	o.close()
	if err := mustReceive(t, result, "end"); !errors.Is(err, ErrDown) {
		t.Fatal(err)
	}
}
