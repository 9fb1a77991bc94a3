package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// mustHex reads hexadecimal digits; blanks do not count. Brackets put the size of what is between them in front
// of it, in one octet, braces in four.
func mustHex(t testing.TB, digits string) []byte {
	t.Helper()
	b, rest := readHex(t, digits)
	if rest != "" {
		t.Fatalf("%q is left of %q", rest, digits)
	}
	return b
}

func readHex(t testing.TB, s string) (b []byte, rest string) {
	t.Helper()
	for s = strings.ReplaceAll(s, " ", ""); s != ""; {
		switch s[0] {
		case '[', '{':
			width, end := 1, s[0]+2
			if s[0] == '{' {
				width = 4
			}
			inner, rest := readHex(t, s[1:])
			if rest == "" || rest[0] != end {
				t.Fatalf("%q does not end in %c", s, end)
			}
			size := binary.BigEndian.AppendUint32(nil, uint32(len(inner)))
			b, s = append(append(b, size[4-width:]...), inner...), rest[1:]
		case ']', '}':
			return b, s
		default:
			o, err := hex.DecodeString(s[:2])
			if err != nil {
				t.Fatal(err)
			}
			b, s = append(b, o...), s[2:]
		}
	}
	return b, ""
}

// mustFail checks that err is a protocol error with this condition whose text contains text.
func mustFail(t testing.TB, err error, condition, text string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Condition != condition || !strings.Contains(e.Description, text) {
		t.Fatalf("err = %v, want %s with %q", err, condition, text)
	}
}

// allComposites are empty values of all types.
func allComposites() []Composite {
	return []Composite{
		new(Open), new(Begin), new(Attach), new(Flow), new(Transfer), new(Disposition), new(Detach), new(End), new(Close),
		new(Error), new(Received), new(Accepted), new(Rejected), new(Released), new(Modified), new(TransactionalState),
		new(Source), new(Target), new(DeleteOnClose), new(Coordinator),
		new(SASLMechanisms), new(SASLInit), new(SASLChallenge), new(SASLResponse), new(SASLOutcome),
		new(Header), new(Properties),
	}
}

// zero is an empty value of the type with this descriptor; nil: there is none.
func zero(code byte) Composite {
	for _, c := range allComposites() {
		if Code(c) == code {
			return c
		}
	}
	return nil
}

// draw fills a composite with what is read back the same.
func draw(t *rapid.T, c Composite) Composite {
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		drawField(t, v.Field(i), c.facts().fields[i])
	}
	return c
}

func drawField(t *rapid.T, f reflect.Value, name string) {
	word := rapid.StringMatching(`[a-z:-]{1,9}|[a-z]{256,300}`)
	switch p := f.Addr().Interface().(type) {
	case *string:
		*p = word.Draw(t, name)
	case *[]byte:
		*p = []byte(word.Draw(t, name))
	case *[]string:
		*p = rapid.SliceOfN(rapid.StringMatching(`[a-z]{0,20}`), 1, 5).Draw(t, name)
	case *MapBytes:
		*p = EndMap(AppendUint(AppendSymbol(StartMap(nil), word.Draw(t, name)), 7), 0, 1)
	case *RawValue:
		*p = AppendString(nil, word.Draw(t, name))
	case *State:
		drawState(t, p, name)
	case **Error:
		*p = draw(t, new(Error)).(*Error)
	case **Source:
		*p = draw(t, new(Source)).(*Source)
	case *Composite:
		*p = draw(t, rapid.SampledFrom([]func() Composite{
			func() Composite { return new(Target) }, func() Composite { return new(Coordinator) },
		}).Draw(t, name)())
	default:
		drawNumber(t, f, name)
	}
}

func drawState(t *rapid.T, s *State, name string) {
	s.Kind = rapid.SampledFrom([]Outcome{NoState, StateReceived, StateAccepted, StateRejected, StateReleased, StateModified}).Draw(t, name)
	switch s.Kind {
	case StateReceived:
		draw(t, &s.Received)
	case StateRejected:
		draw(t, &s.Rejected)
	case StateModified:
		draw(t, &s.Modified)
	}
}

func drawNumber(t *rapid.T, f reflect.Value, name string) {
	switch f.Kind() {
	case reflect.Bool:
		f.SetBool(rapid.Bool().Draw(t, name))
	case reflect.Uint8:
		f.SetUint(uint64(rapid.Byte().Draw(t, name)))
	case reflect.Uint16:
		f.SetUint(uint64(rapid.Uint16().Draw(t, name)))
	case reflect.Uint32:
		f.SetUint(uint64(rapid.Uint32().Draw(t, name)))
	case reflect.Uint64:
		f.SetUint(rapid.Uint64().Draw(t, name))
	case reflect.Int64:
		f.SetInt(rapid.Int64().Draw(t, name))
	case reflect.Struct: // Optional
		if rapid.Bool().Draw(t, name+" present") {
			f.Field(1).SetBool(true)
			drawField(t, f.Field(0), name)
		}
	default:
		t.Fatalf("field %s has a type that cannot be drawn: %v", name, f.Type())
	}
}

// recorded returns the bodies of the frames that stock clients have sent after their login, by client. TestRecord of
// package v10 records them.
func recorded(t testing.TB) map[string][][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/recorded/*.hex")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d recordings, %v", len(names), err)
	}
	all := map[string][][]byte{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		h := ProtocolHeader(0)
		_, stream, ok := bytes.Cut(mustHex(t, strings.ReplaceAll(string(text), "\n", "")), h[:])
		if !ok {
			t.Fatalf("%s has no open", name)
		}
		r := NewReader(bytes.NewReader(stream), 1<<20)
		r.Expect(FrameAMQP, 1<<20)
		for {
			f, err := r.ReadFrame()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			all[name] = append(all[name], bytes.Clone(f.Body))
		}
	}
	return all
}

// recordedMessages returns the messages among them, each sent in one frame.
func recordedMessages(t testing.TB) (all [][]byte) {
	t.Helper()
	for _, bodies := range recorded(t) {
		for _, b := range bodies {
			if code, err := Peek(b); err == nil && code == CodeTransfer {
				rest, err := Decode(b, &Transfer{})
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, rest)
			}
		}
	}
	return all
}
