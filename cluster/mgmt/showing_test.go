package mgmt

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/proto/logpb"
)

// asker makes requests for messages as one user.
func asker(user string) *request {
	return &request{Request: httptest.NewRequest("GET", "/", nil), user: &logpb.PutUser{Name: user}}
}

func answered() (*responder, *httptest.ResponseRecorder) {
	out := httptest.NewRecorder()
	return &responder{ResponseWriter: out, log: slog.New(slog.DiscardHandler)}, out
}

// Two answers have a place at a time, one of each user. Who does not get one in time is told; others wait.
func TestShowingPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShowing(nil)
		begin := func(user string) (*answering, int) {
			w, out := answered()
			return s.begin(w, asker(user)), out.Code
		}
		a, _ := begin("a")
		if x, code := begin("a"); x != nil || code != 503 {
			t.Errorf("the same user gets %v, %d", x, code)
		}
		b, _ := begin("b")
		if x, code := begin("c"); x != nil || code != 503 {
			t.Errorf("a third one gets %v, %d", x, code)
		}
		later := make(chan *answering)
		go func() {
			x, _ := begin("c")
			later <- x
		}()
		synctest.Wait()
		a.end()
		a.end()
		c := <-later
		if c == nil {
			t.Fatal("nobody gets the free place")
		}
		b.end()
		c.end()
		if len(s.users) != 0 {
			t.Errorf("%d places are taken", len(s.users))
		}
	})
}

// What a large answer takes is held for its user until it is written, a small one until it is encoded; at a bound
// the answer is 503 with its name.
func TestShowingHeld(t *testing.T) {
	held, most := int64(0), int64(4<<20)
	s := newShowing(func(string) func(int64) error {
		return func(n int64) error {
			if n > most {
				return errors.New("held_memory.user is reached")
			}
			held = n
			return nil
		}
	})
	w, out := answered()
	x := s.begin(w, asker("a"))
	if held != showingSize || x.counts(3<<20) != nil || held != 3<<20 {
		t.Errorf("%d octets are held", held)
	}
	x.messages("[", 2, "]\n", 3<<20, func(i int) any {
		if held == 0 {
			t.Error("it is given back too early")
		}
		return api.Message{Payload: "<>"}
	})
	x.end()
	var list []api.Message
	if err := json.Unmarshal(out.Body.Bytes(), &list); err != nil || len(list) != 2 || list[1].Payload != "<>" || held != 0 {
		t.Errorf("%s: %v, %d octets are held", out.Body, err, held)
	}
	w, _ = answered()
	x = s.begin(w, asker("a"))
	if err := x.counts(5 << 20); err == nil || held != showingSize {
		t.Errorf("%v, %d octets are held", err, held)
	}
	x.end()
	if held != 0 || len(s.users) != 0 {
		t.Errorf("%d octets are held, %d places taken", held, len(s.users))
	}
	most = 0
	w, out = answered()
	if s.begin(w, asker("a")) != nil || out.Code != 503 || !strings.Contains(out.Body.String(), "held_memory.user is reached") || len(s.users) != 0 {
		t.Errorf("%d, %d places taken", out.Code, len(s.users))
	}
}

// A text of control characters is shown as base64: as a string it would take six octets for each.
func TestMostlyEscaped(t *testing.T) {
	for text, want := range map[string]string{
		"": "string", "plain": "string", `{"a":"b","c":"d"}`: "string", "a\nb\tc\r\n": "string", "<a><b/></a>": "string",
		"\x00": "base64", "nine bytes\x01": "string", "eight..\x01": "base64", "\xff": "base64",
	} {
		var m api.Message
		encoding{truncate: -1}.show(&m, []byte(text))
		if m.PayloadEncoding != want {
			t.Errorf("%q: %s, want %s", text, m.PayloadEncoding, want)
		}
	}
}

// What may not be held is not taken: a get that is refused has settled nothing.
func TestTakeRefused(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	b := backendOf(w)
	b.Hold = func(string) func(int64) error {
		return func(n int64) error {
			if n > showingSize {
				return errors.New("held_memory.user is reached")
			}
			return nil
		}
	}
	w.handler = New(b, slog.New(slog.DiscardHandler), w.server.guard).Handler()
	get := "/api/queues/%2F/q/get"
	w.check(want{"root", "POST", get, `{"count":2,"ackmode":"ack_requeue_false","encoding":"auto"}`, 503, failure("unavailable", "held_memory.user is reached")})
	if w.settled != 0 {
		t.Errorf("%d messages are gone", w.settled)
	}
	w.check(want{"root", "POST", get, `{"count":1,"ackmode":"ack_requeue_false","encoding":"auto","truncate":0}`, 200, `…"payload_bytes":6`})
	if w.settled != 1 {
		t.Errorf("%d messages are settled, want 1", w.settled)
	}
}
