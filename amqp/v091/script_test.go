package v091_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v091"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// TestScripts runs testdata/*.txt. Each line under send is one frame, or a
// content with its header; the frames that come back are recorded below.
//
//	connect [NAME] [can=CAPABILITY …]   log in
//	dial [NAME]                         connect and say nothing
//	send [NAME] [rest]                  send lines; rest: receive up to the end
//	raw [NAME]                          send octets, in hex or quoted; receive up to the end
//	broker VERB ARGUMENTS               have the broker do something, then receive
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		s := &script{t: t, clients: map[string]*amqptest.Client{}, confirmed: map[string]map[uint64]bool{}}
		datadriven.RunTest(t, path, s.run)
	})
}

type script struct {
	t       *testing.T
	server  *server
	clients map[string]*amqptest.Client
	// confirmed holds the tags confirmed so far, by channel.
	confirmed map[string]map[uint64]bool
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	if s.server == nil {
		s.server = mustServe(s.t, func(c *amqp.Config) {
			c.MaxMessageSize, c.Protocols = 1000, []amqp.Protocol{v091.Protocol{MaxConsumers: 4}}
		})
	}
	name := "1"
	if len(d.CmdArgs) > 0 && len(d.CmdArgs[0].Vals) == 0 && d.Cmd != "broker" && d.CmdArgs[0].Key != "rest" {
		name = d.CmdArgs[0].Key
	}
	switch d.Cmd {
	case "connect":
		var can []string
		for _, a := range d.CmdArgs {
			if a.Key == "can" {
				can = a.Vals
			}
		}
		s.clients[name] = s.server.mustLogin(can...)
		return ""
	case "dial":
		s.clients[name] = s.server.mustDial()
		return ""
	case "timeouts":
		return fmt.Sprintf("%+v\n", s.server.Timeouts())
	case "broker":
		s.broker(t, d)
	}
	c := s.clients[name]
	switch d.Cmd {
	case "send":
		for line := range strings.Lines(d.Input) {
			c.SendText(strings.TrimSpace(line))
		}
		if d.HasArg("rest") {
			return s.rest(name)
		}
	case "raw":
		for line := range strings.Lines(d.Input) {
			c.Write(mustOctets(t, strings.TrimSpace(line)))
		}
		return s.rest(name)
	}
	return s.result(c)
}

// rest is what a client receives up to the end.
func (s *script) rest(name string) string {
	defer delete(s.clients, name)
	return lines(s.clients[name].Rest())
}

// quiesce waits until every event of the broker has been handed to its channel,
// and the goroutines that channels have started for events have queued their
// tasks: what a client asks for from then on is behind them.
func (s *script) quiesce() {
	s.server.broker.Quiesce()
	for end := time.Now().Add(time.Minute); ; {
		i := slices.IndexFunc(amqptest.Goroutines(), func(stack string) bool {
			return strings.Contains(stack, "v091.(*channel).post") && !strings.Contains(stack, "amqptest.(*Broker).enter")
		})
		if i < 0 {
			return
		}
		if time.Now().After(end) {
			s.t.Fatal("a task of a channel does not end")
		}
		<-time.After(time.Millisecond)
	}
}

// result is what the clients receive, then what has happened in the broker.
func (s *script) result(first *amqptest.Client) string {
	out := first.Sync(s.quiesce)
	for _, name := range []string{"1", "2"} {
		if c := s.clients[name]; c != nil && c != first {
			for _, line := range c.Sync(s.quiesce) {
				out = append(out, "client "+name+": "+line)
			}
		}
	}
	channels := 0
	for _, c := range s.clients {
		channels += c.Channels()
	}
	s.server.broker.AwaitSessions(channels)
	for _, line := range s.server.broker.Journal() {
		out = append(out, "broker: "+line)
	}
	return lines(s.gatherConfirms(out))
}

// gatherConfirms replaces the acks and nacks of the server, whose grouping
// depends on when the writer was awake, by one line for each channel and
// outcome, in order of the tags.
func (s *script) gatherConfirms(frames []string) []string {
	var out []string
	tags := map[string][]uint64{}
	for _, line := range frames {
		var channel, method string
		var tag uint64
		fmt.Sscanf(line, "%s %s delivery-tag=%d", &channel, &method, &tag)
		switch method {
		case "channel.open-ok":
			delete(s.confirmed, channel)
		case "basic.ack", "basic.nack":
			name := channel + " " + strings.TrimPrefix(method, "basic.") + "ed"
			first := tag
			if strings.HasSuffix(line, " multiple") {
				first = 1
			}
			for n := first; n <= tag; n++ {
				if !s.isConfirmed(channel, n) {
					tags[name] = append(tags[name], n)
				} else if n == tag {
					s.t.Errorf("confirmed twice: %s", line)
				}
			}
			continue
		}
		out = append(out, line)
	}
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		slices.Sort(tags[name])
		out = append(out, fmt.Sprint(name, " ", tags[name]))
	}
	return out
}

// isConfirmed reports whether the tag is confirmed already; from now on it is.
func (s *script) isConfirmed(channel string, tag uint64) bool {
	if s.confirmed[channel] == nil {
		s.confirmed[channel] = map[uint64]bool{}
	}
	was := s.confirmed[channel][tag]
	s.confirmed[channel][tag] = true
	return was
}

func lines(out []string) string {
	if len(out) == 0 {
		return "ok\n"
	}
	return strings.Join(out, "\n") + "\n"
}

func mustOctets(t *testing.T, text string) []byte {
	t.Helper()
	if rest, ok := strings.CutPrefix(text, `"`); ok {
		return []byte(strings.TrimSuffix(rest, `"`))
	}
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return b
}

func (s *script) broker(t *testing.T, d *datadriven.TestData) {
	t.Helper()
	b := s.server.broker
	arg := func(i int) string {
		if i+1 >= len(d.CmdArgs) {
			return ""
		}
		return d.CmdArgs[i+1].Key
	}
	switch verb := d.CmdArgs[0].Key; verb {
	case "hold":
		b.HoldConfirms()
	case "release":
		b.ReleaseConfirms(arg(0) == "backwards")
	case "refuse", "accept":
		b.RefusePublishes(arg(0), verb == "refuse")
	case "timeout":
		b.TimeOut(arg(0), 1000)
	case "lose":
		b.Lose(fsm.Refuse(fsm.Unavailable, "session lost"))
	case "block":
		b.Block(arg(0))
	case "unblock":
		b.Unblock(arg(0))
	case "fail":
		b.Fail(arg(0), failure(arg(1)))
	case "inject":
		b.Inject(arg(0), deadLetter(arg(1)))
	case "state":
	default:
		t.Fatalf("broker cannot %s", verb)
	}
}

var kinds = map[string]fsm.Kind{
	"internal": fsm.Internal, "not-found": fsm.NotFoundKind, "access": fsm.AccessRefused, "locked": fsm.Locked,
	"precondition": fsm.Precondition, "not-allowed": fsm.NotAllowed, "not-implemented": fsm.NotImplemented,
	"unavailable": fsm.Unavailable, "forced": fsm.Forced,
}

func failure(name string) error {
	if kind, ok := kinds[name]; ok {
		return fsm.Refuse(kind, "text of the "+name+" refusal")
	}
	return errors.New("secret of the broker")
}

// deadLetter makes a message that died in some way.
func deadLetter(how string) fsm.Message {
	properties, _, err := amqptest.ParseProperties([]string{"expiration=400", "x-app=I:7", "x-death=S:forged", "x-tail=I:9"})
	if err != nil {
		panic(err)
	}
	m := fsm.Message{Payload: fsm.AppendPayloadHead(nil, "dlx", "key", properties)}
	m.Payload = append(m.Payload, "dead"...)
	expired := amqptest.Death(logpb.Death_EXPIRED, "q1", 2, 1_700_000_000_999, "", "q1")
	expired.OriginalExpiration = "400"
	rejected := amqptest.Death(logpb.Death_REJECTED, "q2", 1, 1_700_000_001_000, "x", "a", "b")
	expired.First, rejected.LastExchange = true, "x"
	switch how {
	case "expired":
		m.Deaths = []*logpb.Death{expired}
	case "twice":
		m.Deaths = []*logpb.Death{rejected, expired}
	case "cycled", "classic": // the first death has moved to the front
		m.Deaths = []*logpb.Death{expired, rejected}
		m.Acquired, m.Failed, m.Classic = 3, 2, how == "classic"
	default:
		panic(fmt.Sprintf("no death %s", how))
	}
	return m
}
