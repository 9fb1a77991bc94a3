package clients

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	ten "github.com/Azure/go-amqp"
	amqp "github.com/rabbitmq/amqp091-go"
)

// TestAMQP10 plays scenarios of AMQP 1.0 with the clients that people have: go-amqp, the base of
// RabbitMQ's Go client and of Azure's, rhea and qpid-proton. With -clients.rabbitmq-uri
// they are played with RabbitMQ.
func TestAMQP10(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	uri := *rabbitURI
	if uri == "" {
		n := mustStartNodes(t, ctx, 1).Nodes[0]
		awaitVersion(t, ctx, n)
		uri = n.URI()
	}
	at, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := amqp.Dial(uri)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	prefix := fmt.Sprint("amqp10-", time.Now().UnixNano())
	t.Run("go-amqp", func(t *testing.T) {
		for _, s := range scenarios10 {
			t.Run(s.name, func(t *testing.T) {
				p := &player10{t: t, ctx: ctx, address: at.Host, queue: mustQueue(t, conn, prefix+"-go."+s.name)}
				s.play(p)
			})
		}
	})
	for name, of := range map[string]func(context.Context, string) (*exec.Cmd, error){
		"rhea": script(node, "rhea", "rhea_amqp10.js"), "proton": script(python, "proton", "proton_amqp10.py"),
	} {
		t.Run(name, func(t *testing.T) { playAll10(t, ctx, conn, of, at.Host, prefix+"-"+name) })
	}
}

// mustQueue declares a quorum queue.
func mustQueue(t *testing.T, conn *amqp.Connection, name string) string {
	t.Helper()
	name = strings.ReplaceAll(name, " ", "-")
	ch, err := conn.Channel()
	if err == nil {
		_, err = ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	}
	if err == nil {
		err = ch.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// playAll10 runs a program, each of whose scenarios is a test.
func playAll10(t *testing.T, ctx context.Context, conn *amqp.Connection, of func(context.Context, string) (*exec.Cmd, error), address, prefix string) {
	t.Helper()
	run := func(args ...string) []string {
		cmd, err := of(ctx, t.TempDir())
		if err != nil {
			t.Skip(err)
		}
		cmd.Args = append(cmd.Args, args...)
		var complaints strings.Builder
		cmd.Stderr = &complaints
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, out, &complaints)
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	names := run("list")
	for _, name := range names {
		mustQueue(t, conn, prefix+"."+name)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	lines := run(host, port, prefix)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			said := ""
			for _, line := range lines {
				if line == "ok "+name {
					return
				}
				if strings.HasPrefix(line, "failed "+name+" ") {
					said = line
				}
			}
			t.Errorf("not ok: %s", said)
		})
	}
}

// scenario10 is one with go-amqp.
type scenario10 struct {
	name string
	play func(*player10)
}

// player10 plays a scenario.
type player10 struct {
	t       *testing.T
	ctx     context.Context
	address string
	queue   string
}

func (p *player10) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *player10) equal(have, want any) {
	p.t.Helper()
	if h, w := fmt.Sprintf("%T %v", have, have), fmt.Sprintf("%T %v", want, want); h != w {
		p.t.Errorf("%s, not %s", h, w)
	}
}

func (p *player10) connect(change func(*ten.ConnOptions)) *ten.Conn {
	p.t.Helper()
	o := &ten.ConnOptions{SASLType: ten.SASLTypePlain("guest", "guest")}
	if change != nil {
		change(o)
	}
	conn, err := ten.Dial(p.ctx, "amqp://"+p.address, o)
	p.must(err)
	p.t.Cleanup(func() { conn.Close() })
	return conn
}

func (p *player10) session() *ten.Session {
	p.t.Helper()
	s, err := p.connect(nil).NewSession(p.ctx, nil)
	p.must(err)
	return s
}

func (p *player10) at() string { return "/queues/" + p.queue }

func (p *player10) sender(s *ten.Session, address string, o *ten.SenderOptions) *ten.Sender {
	p.t.Helper()
	l, err := s.NewSender(p.ctx, address, o)
	p.must(err)
	return l
}

func (p *player10) receiver(s *ten.Session, o *ten.ReceiverOptions) *ten.Receiver {
	p.t.Helper()
	l, err := s.NewReceiver(p.ctx, p.at(), o)
	p.must(err)
	return l
}

// get receives a message, and accepts it.
func (p *player10) get(r *ten.Receiver) *ten.Message {
	p.t.Helper()
	m, err := r.Receive(p.ctx, nil)
	p.must(err)
	p.must(r.AcceptMessage(p.ctx, m))
	return m
}

func (p *player10) send(l *ten.Sender, bodies ...string) {
	p.t.Helper()
	for _, b := range bodies {
		p.must(l.Send(p.ctx, ten.NewMessage([]byte(b)), nil))
	}
}

// trip sends a message and gets it.
func (p *player10) trip(m *ten.Message) *ten.Message {
	p.t.Helper()
	s := p.session()
	p.must(p.sender(s, p.at(), nil).Send(p.ctx, m, nil))
	return p.get(p.receiver(s, nil))
}

var scenarios10 = []scenario10{
	{"send", func(p *player10) { p.equal(string(p.trip(ten.NewMessage([]byte("m"))).GetData()), "m") }},
	{"many", func(p *player10) {
		s := p.session()
		l := p.sender(s, p.at(), nil)
		for n := range 500 {
			p.send(l, fmt.Sprint(n))
		}
		r := p.receiver(s, &ten.ReceiverOptions{Credit: 50})
		for n := range 500 {
			p.equal(string(p.get(r).GetData()), fmt.Sprint(n))
		}
	}},
	{"settled", func(p *player10) {
		s := p.session()
		l := p.sender(s, p.at(), &ten.SenderOptions{SettlementMode: ten.SenderSettleModeSettled.Ptr()})
		p.send(l, "m")
		r := p.receiver(s, &ten.ReceiverOptions{RequestedSenderSettleMode: ten.SenderSettleModeSettled.Ptr()})
		m, err := r.Receive(p.ctx, nil)
		p.must(err)
		p.equal(string(m.GetData()), "m")
	}},
	{"release", func(p *player10) {
		s := p.session()
		p.send(p.sender(s, p.at(), nil), "m")
		r := p.receiver(s, nil)
		m, err := r.Receive(p.ctx, nil)
		p.must(err)
		p.must(r.ReleaseMessage(p.ctx, m))
		m = p.get(r)
		p.equal(m.Header.DeliveryCount, uint32(0))
		p.equal(m.Header.FirstAcquirer, false)
	}},
	{"modify", func(p *player10) {
		s := p.session()
		p.send(p.sender(s, p.at(), nil), "m")
		r := p.receiver(s, nil)
		m, err := r.Receive(p.ctx, nil)
		p.must(err)
		p.must(r.ModifyMessage(p.ctx, m, &ten.ModifyMessageOptions{DeliveryFailed: true, Annotations: ten.Annotations{"x-why": "tired"}}))
		m = p.get(r)
		p.equal(m.Header.DeliveryCount, uint32(1))
		p.equal(m.Annotations["x-why"], "tired")
	}},
	{"reject", func(p *player10) {
		s := p.session()
		l := p.sender(s, p.at(), nil)
		p.send(l, "a", "b")
		r := p.receiver(s, nil)
		m, err := r.Receive(p.ctx, nil)
		p.must(err)
		p.must(r.RejectMessage(p.ctx, m, &ten.Error{Condition: "own:reason"}))
		p.equal(string(p.get(r).GetData()), "b")
	}},
	{"unroutable", func(p *player10) {
		receipt, err := p.sender(p.session(), "/exchanges/amq.direct/nowhere", nil).SendWithReceipt(p.ctx, ten.NewMessage([]byte("m")), nil)
		p.must(err)
		state, err := receipt.Wait(p.ctx)
		p.must(err)
		p.equal(fmt.Sprintf("%T", state), fmt.Sprintf("%T", &ten.StateReleased{}))
	}},
	{"missing", func(p *player10) {
		_, err := p.session().NewReceiver(p.ctx, "/queues/nope", nil)
		if err == nil || !strings.Contains(err.Error(), "amqp:not-found") {
			p.t.Errorf("%v", err)
		}
	}},
	{"anonymous", func(p *player10) {
		s := p.session()
		m, to := ten.NewMessage([]byte("m")), p.at()
		m.Properties = &ten.MessageProperties{To: &to}
		p.must(p.sender(s, "", &ten.SenderOptions{}).Send(p.ctx, m, nil))
		p.equal(string(p.get(p.receiver(s, nil)).GetData()), "m")
	}},
	{"properties", func(p *player10) {
		text := "text"
		m := ten.NewMessage([]byte("m"))
		m.Header = &ten.MessageHeader{Durable: true, Priority: 7}
		m.Properties = &ten.MessageProperties{MessageID: uint64(7), Subject: &text, CorrelationID: "c", ContentType: &text, GroupID: &text}
		m.ApplicationProperties = map[string]any{"n": int32(-7), "t": true, "s": "ü"}
		have := p.trip(m)
		p.equal(have.Header.Priority, uint8(7))
		p.equal(have.Properties.MessageID, uint64(7))
		p.equal(*have.Properties.Subject, text)
		p.equal(have.ApplicationProperties, m.ApplicationProperties)
	}},
	{"value", func(p *player10) {
		p.equal(p.trip(&ten.Message{Value: map[string]any{"k": int64(1)}}).Value, map[string]any{"k": int64(1)})
	}},
	{"large", func(p *player10) {
		body := strings.Repeat("x", 1<<20)
		p.equal(string(p.trip(ten.NewMessage([]byte(body))).GetData()) == body, true)
	}},
	{"frames", func(p *player10) {
		s, err := p.connect(func(o *ten.ConnOptions) { o.MaxFrameSize = 1024 }).NewSession(p.ctx, nil)
		p.must(err)
		body := strings.Repeat("y", 20_000)
		p.send(p.sender(s, p.at(), nil), body)
		p.equal(string(p.get(p.receiver(s, nil)).GetData()), body)
	}},
	{"drain", func(p *player10) {
		s := p.session()
		p.send(p.sender(s, p.at(), nil), "m")
		r := p.receiver(s, &ten.ReceiverOptions{Credit: -1})
		p.must(r.IssueCredit(5))
		p.equal(string(p.get(r).GetData()), "m")
		p.must(r.DrainCredit(p.ctx, nil))
		p.must(r.IssueCredit(1))
	}},
	{"unsettled", func(p *player10) {
		s := p.session()
		p.send(p.sender(s, p.at(), nil), "m")
		_, err := p.receiver(s, nil).Receive(p.ctx, nil)
		p.must(err)
		p.must(s.Close(p.ctx))
		p.equal(string(p.get(p.receiver(p.session(), nil)).GetData()), "m")
	}},
	{"password", func(p *player10) {
		ctx, cancel := context.WithTimeout(p.ctx, 30*time.Second)
		defer cancel()
		if _, err := ten.Dial(ctx, "amqp://"+p.address, &ten.ConnOptions{SASLType: ten.SASLTypePlain("guest", "wrong")}); err == nil || ctx.Err() != nil {
			p.t.Errorf("it is let in, or waits: %v", err)
		}
	}},
}
