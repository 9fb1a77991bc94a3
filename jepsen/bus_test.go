package jepsen

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/workload"
)

// The rule of the namespace of "quorate dev --service-bus".
const busRule, busKey = "RootManageSharedAccessKey", "SAS_KEY_VALUE"

// busLock is the shortest lock that there is.
const busLock = 5 * time.Second

// createEntity creates a queue of Azure Service Bus, with elements of its description.
func (r *run) createEntity(ctx context.Context, name, elements string) error {
	address := "http://" + r.Nodes[0].Manage + "/" + name
	resource, until := url.QueryEscape(address), strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)
	sum := hmac.New(sha256.New, []byte(busKey))
	sum.Write([]byte(resource + "\n" + until))
	q, err := http.NewRequestWithContext(ctx, http.MethodPut, address+"?api-version=2021-05", strings.NewReader(
		`<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">`+
			"<LockDuration>PT5S</LockDuration>"+elements+`</QueueDescription></content></entry>`))
	if err != nil {
		return err
	}
	signature := url.QueryEscape(base64.StdEncoding.EncodeToString(sum.Sum(nil)))
	q.Header.Set("Authorization", "SharedAccessSignature sr="+resource+"&sig="+signature+"&se="+until+"&skn="+busRule)
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusCreated {
		return fmt.Errorf("create %s: %w, %s %s", name, err, answer.Status, text)
	}
	return nil
}

// bus is a connection of a program of Azure Service Bus.
type bus struct {
	h       *history.History
	node    *cluster.Node
	conn    *amqp.Conn
	session *amqp.Session
	askers  map[string]*busAsker // by entity
	opened  time.Duration
}

// busAsker has the links for requests about an entity.
type busAsker struct {
	sender   *amqp.Sender
	receiver *amqp.Receiver
	last     uint64
}

// busPatience bounds whatever a program waits for. The broker gives up earlier if a queue has no leader.
const busPatience = 30 * time.Second

func dialBus(ctx context.Context, h *history.History, n *cluster.Node) (*bus, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	b := &bus{h: h, node: n, askers: map[string]*busAsker{}, opened: h.Now()}
	var err error
	if b.conn, err = amqp.Dial(ctx, "amqp://"+n.Bus, &amqp.ConnOptions{SASLType: amqp.SASLTypePlain(busRule, busKey)}); err != nil {
		return nil, err
	}
	if b.session, err = b.conn.NewSession(ctx, nil); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bus) close() { _ = b.conn.Close() }

// receiver opens a link from an entity, for peek-lock. With credit 0 it is given by hand.
func (b *bus) receiver(ctx context.Context, address string, credit int32) (*amqp.Receiver, error) {
	ctx, cancel := context.WithTimeout(ctx, busPatience)
	defer cancel()
	if credit == 0 {
		credit = -1
	}
	return b.session.NewReceiver(ctx, address, &amqp.ReceiverOptions{Credit: credit, SettlementMode: amqp.ReceiverSettleModeSecond.Ptr()})
}

// accept opens a link from a session of an entity, the next one for nil, and returns which it is and until when it is held. Credit is
// given by hand: else the client may give some on a link that it has just closed, which ends the session of AMQP.
func (b *bus) accept(ctx context.Context, address string, wanted any) (from *amqp.Receiver, session string, until time.Duration, err error) {
	const filter = "com.microsoft:session-filter"
	from, err = b.session.NewReceiver(ctx, address, &amqp.ReceiverOptions{
		Credit: -1, SettlementMode: amqp.ReceiverSettleModeSecond.Ptr(), Properties: map[string]any{"com.microsoft:timeout": uint32(2000)},
		Filters: []amqp.LinkFilter{amqp.NewLinkFilter(filter, 0x137000000C, wanted)},
	})
	if err != nil {
		return nil, "", 0, err
	}
	const ticks1970 = 621_355_968_000_000_000
	session, _ = from.LinkSourceFilterValue(filter).(string)
	ticks, ok := from.Properties()["com.microsoft:locked-until-utc"].(int64)
	if !ok {
		return nil, "", 0, fmt.Errorf("an accepted session without a time: %v", from.Properties())
	}
	return from, session, b.at(time.UnixMilli((ticks - ticks1970) / 10_000)), nil
}

// at is a time in the history.
func (b *bus) at(t time.Time) time.Duration { return b.h.Now() + time.Until(t) }

// errBusAnswer is an answer that no correct request gets.
var errBusAnswer = errors.New("a request was refused")

// ask asks for something about an entity.
func (b *bus) ask(ctx context.Context, entity, operation string, body map[string]any) (history.Result, map[string]any, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), busPatience)
	defer cancel()
	a := b.askers[entity]
	if a == nil {
		var err error
		if a, err = b.openAsker(ctx, entity+"/$management"); err != nil {
			return b.result(err)
		}
		b.askers[entity] = a
	}
	a.last++
	err := a.sender.Send(ctx, &amqp.Message{
		Properties: &amqp.MessageProperties{MessageID: a.last, ReplyTo: new("answers")}, ApplicationProperties: map[string]any{"operation": "com.microsoft:" + operation}, Value: body,
	}, nil)
	if err != nil {
		return b.result(err)
	}
	m, err := a.receiver.Receive(ctx, nil)
	if err != nil {
		return b.result(err)
	}
	if m.Properties.CorrelationID != a.last {
		return history.Unknown, nil, fmt.Errorf("%w: the answer to %v, not %d", errBusAnswer, m.Properties.CorrelationID, a.last)
	}
	answer, _ := m.Value.(map[string]any)
	switch code := m.ApplicationProperties["statusCode"]; code {
	case int32(http.StatusOK):
		return history.OK, answer, nil
	case int32(http.StatusGone), int32(http.StatusNotFound):
		return history.No, answer, nil
	case int32(http.StatusServiceUnavailable):
		return history.Unknown, nil, nil
	default:
		return history.Unknown, nil, fmt.Errorf("%w: %s %v: %v %v", errBusAnswer, operation, body, code, m.ApplicationProperties["statusDescription"])
	}
}

func (b *bus) openAsker(ctx context.Context, node string) (*busAsker, error) {
	sender, err := b.session.NewSender(ctx, node, nil)
	if err != nil {
		return nil, err
	}
	receiver, err := b.session.NewReceiver(ctx, node, &amqp.ReceiverOptions{
		TargetAddress: "answers", Credit: 1, SettlementMode: amqp.ReceiverSettleModeFirst.Ptr(), RequestedSenderSettleMode: amqp.SenderSettleModeSettled.Ptr(),
	})
	return &busAsker{sender: sender, receiver: receiver}, err
}

func (b *bus) result(err error) (history.Result, map[string]any, error) {
	r, err := busResult(err)
	return r, nil, err
}

// busResult says what an error of a link means. An error that no correct client gets is returned.
func busResult(err error) (history.Result, error) {
	var link *amqp.LinkError
	var e *amqp.Error
	if errors.As(err, &link) {
		e = link.RemoteErr
	} else {
		errors.As(err, &e)
	}
	if err == nil {
		return history.OK, nil
	} else if e == nil || errors.As(err, new(*amqp.ConnError)) { // the connection is gone, or the answer takes too long
		return history.Unknown, nil
	}
	switch e.Condition {
	case "com.microsoft:message-lock-lost", "com.microsoft:session-lock-lost":
		return history.No, nil
	case "com.microsoft:server-busy":
		return history.Unknown, nil
	}
	return history.Unknown, fmt.Errorf("%w: %w", errBusAnswer, err)
}

// isBus reports whether an error has a condition.
func isBus(err error, condition string) bool {
	return err != nil && strings.Contains(err.Error(), condition)
}

// atBus lets a program work at one node after the other until ctx ends.
func (r *run) atBus(ctx context.Context, h *history.History, first int, work func(*bus) error) error {
	for k := first; ctx.Err() == nil; k++ {
		b, err := dialBus(ctx, h, r.Nodes[k%len(r.Nodes)])
		if err != nil {
			workload.Wait(ctx, 50*time.Millisecond)
			continue
		}
		err = work(b)
		b.close()
		if _, err := busResult(err); err != nil && ctx.Err() == nil {
			return fmt.Errorf("node %d at %v: %w", b.node.Number, h.Now(), err)
		}
		workload.Wait(ctx, 20*time.Millisecond)
	}
	return nil
}

// connected is until when a client certainly had its connection that is lost now: its node may have been killed before it noticed.
func (r *run) connected(b *bus) time.Duration {
	at := b.h.Now()
	for _, f := range r.History.Copy().Faults {
		if f.Node == b.node.Number && f.At >= b.opened {
			at = min(at, f.At)
		}
	}
	return at
}

// busMessage is one of a key.
func busMessage(key uint64) *amqp.Message {
	m := amqp.NewMessage(client.Body(key, 64))
	m.Properties = &amqp.MessageProperties{MessageID: fmt.Sprint("k", key)}
	return m
}

// sends makes a play send messages one after the other, each once.
func (p *play) sends(r *run, name string, every time.Duration, group func() string) {
	p.publish = append(p.publish, func(ctx context.Context, enough <-chan struct{}) error {
		publishing, stop := context.WithCancel(ctx)
		defer stop()
		go func() {
			select {
			case <-enough:
				stop()
			case <-publishing.Done():
			}
		}()
		epoch := 0
		return r.atBus(publishing, p.History, len(name), func(b *bus) error {
			s, err := b.session.NewSender(publishing, p.name, nil)
			for epoch++; err == nil && publishing.Err() == nil; workload.Wait(publishing, every) {
				err = p.send(publishing, s, name, epoch, group())
			}
			return err
		})
	})
}

func (p *play) send(ctx context.Context, s *amqp.Sender, name string, epoch int, group string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), busPatience)
	defer cancel()
	key := p.Begin(history.Attempt{Message: p.NextMessage(), Publisher: name, Epoch: epoch, Queue: p.name, Group: group})
	m := busMessage(key)
	if group != "" {
		m.Properties.GroupID = &group
	}
	err := s.Send(ctx, m, nil)
	if err == nil {
		p.End(key, history.OK)
	}
	return err
}

// busTaken is a delivery.
type busTaken struct {
	workload.Taken
	message *amqp.Message
	token   amqp.UUID
	until   time.Duration // as the client was told
}

// took records a delivery.
func (b *bus) took(m *amqp.Message, client, queue, group string) (t busTaken, err error) {
	t.Key, t.Queue, t.Group, t.message = keyOf(m), queue, group, m
	until, ok := m.Annotations["x-opt-locked-until"].(time.Time)
	token, also := m.DeliveryAnnotations["x-opt-lock-token"].(amqp.UUID)
	if !ok || !also || m.Header == nil {
		return t, fmt.Errorf("%w: a delivery without lock: %v %v", errBusAnswer, m.Annotations, m.DeliveryAnnotations)
	}
	t.token, t.until, t.Turn = token, b.at(until), int(m.Header.DeliveryCount)
	t.On = b.h.Took(history.Op{Client: client, Key: t.Key, Queue: queue, Group: group, Again: t.Turn > 0, Turn: t.Turn, Call: b.opened})
	t.At = b.h.Now()
	if group == "" { // what it was told with the delivery
		b.did(t.About(history.Renew, t.until), client, 0, history.OK)
	}
	return t, nil
}

// did records an op that was called at a time.
func (b *bus) did(o history.Op, client string, call time.Duration, result history.Result) {
	if o.Client, o.Call, o.Result = client, call, result; result != history.Unknown {
		o.Return = b.h.Now()
	}
	b.h.Did(o)
}

func keyOf(m *amqp.Message) uint64 {
	key, _ := client.Key(m.GetData())
	return key
}
