package main

import (
	"bytes"
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

	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/frames"
	"github.com/quorate/quorate/jepsen/report"
)

// The rule of the namespace of "quorate dev --service-bus".
const busRule, busKey = "RootManageSharedAccessKey", "SAS_KEY_VALUE"

// The load of sessions: so many acceptors, two at each node of three, and so many sessions that have a message each.
const (
	acceptors   = 6
	busSessions = 200
)

// serviceBusSteps measure what programs of Azure Service Bus are served, each on a cluster of its own.
func (b *bench) serviceBusSteps(duration time.Duration) []step {
	s := defaultShape
	s.duration = duration
	on := func(measure func(*busBench)) func() {
		return func() {
			own := &bench{ctx: b.ctx, lab: b.lab, label: b.label, broker: b.broker}
			must(inFolder(b.lab.dir, func(dir string) error {
				return own.onNodes(cluster.Options{Dir: dir, Args: []string{"--service-bus"}}, func() {
					own.warmUp(min(warmTime, duration))
					bus := &busBench{bench: own, counts: make([]int, acceptors)}
					bus.see()
					measure(bus)
				})
			}))
			b.results = append(b.results, own.results...)
		}
	}
	return []step{
		{fmt.Sprintf("servicebus throughput, %d bytes", s.size), on(func(bus *busBench) { bus.peekLocked(s) })},
		{"servicebus sessions", on(func(bus *busBench) { bus.keep(bus.accepted(duration)) })},
	}
}

// busBench measures a cluster as such programs see it: its queues are entities.
type busBench struct {
	*bench
	counts []int // sessions that each acceptor has released
}

// see makes the clients of the bench such programs.
func (b *busBench) see() {
	t := *b.target
	t.uris, t.manage = nil, "http://"+b.own.Nodes[0].Manage+"/"
	for _, n := range b.own.Nodes {
		t.uris = append(t.uris, client.SchemeBus+busRule+":"+busKey+"@"+n.Bus)
	}
	b.target = &t
}

// peekLocked measures the same throughput in plain AMQP 1.0 and as peek-lock of Azure Service Bus.
func (b *busBench) peekLocked(s shape) {
	plain := *b.bench
	plain.target = &target{uris: b.own.uris, pids: b.pids, queueType: b.own.queueType, in10: true}
	r := plain.throughput(s)
	r.Name = fmt.Sprintf("servicebus's throughput, %d bytes, in plain AMQP 1.0", s.size)
	b.keep(r)
	other := b.throughput(s)
	other.Name = fmt.Sprintf("servicebus throughput, %d bytes", s.size)
	other.Note("rate of plain AMQP 1.0's", 100*other.PerSecond/r.PerSecond, "%")
	b.keep(other)
}

// accepted measures how many sessions are accepted and released, whichever is free, by several receivers at once.
func (b *busBench) accepted(duration time.Duration) report.Result {
	r := report.Result{Name: "servicebus sessions accepted and released"}
	q := queue{name: "bench-sessions"}
	must(b.entity(b.ctx, http.MethodPut, q.name, "<RequiresSession>true</RequiresSession>"))
	must(b.fillSessions(q.name))
	more := during(duration)
	began := make([]*frames.Conn, acceptors)
	for i := range began {
		began[i] = get(b.login(i))
		defer began[i].Close()
	}
	b.cost(&r, func() (n int) {
		more(0)
		var all errgroup.Group
		for i, c := range began {
			all.Go(func() (err error) {
				for ; err == nil && more(0); b.counts[i]++ {
					err = acceptNext(c, q.name, b.counts[i])
				}
				return err
			})
		}
		must(all.Wait())
		for _, k := range b.counts {
			n += k
		}
		return n
	})
	r.Note("sessions a minute", 60*r.PerSecond, "")
	b.remove(q)
	return r
}

// login connects to a node and opens a session of AMQP.
func (b *busBench) login(i int) (*frames.Conn, error) {
	c, err := frames.Login(b.ctx, b.own.Nodes[i%len(b.own.Nodes)].Bus, busRule, busKey, "bench")
	if err != nil {
		return nil, err
	}
	if err = c.Send(0, "begin", frames.Fields{"next-outgoing-id": 0, "incoming-window": 1 << 20, "outgoing-window": 1 << 20}); err == nil {
		_, err = c.Await("begin")
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// fillSessions sends a message to each session of an entity.
func (b *busBench) fillSessions(entity string) error {
	c, err := b.login(0)
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.Send(0, "attach", frames.Fields{"name": "to", "handle": 0, "role": false, "initial-delivery-count": 0,
		"source": frames.Composite{Name: "source"}, "target": frames.Composite{Name: "target", Fields: frames.Fields{"address": entity}}})
	for i := 0; i < busSessions && err == nil; i++ {
		message := frames.Append(nil, frames.Composite{Name: "properties", Fields: frames.Fields{"message-id": fmt.Sprint("m", i), "group-id": fmt.Sprint("session ", i)}})
		message = frames.Append(message, frames.Described{Descriptor: uint64(0x75), Value: bytes.Repeat([]byte("x"), smallSize)})
		err = c.Send(0, "transfer", frames.Fields{"handle": 0, "delivery-id": i, "delivery-tag": fmt.Sprint(i)}, message...)
		for answered := false; err == nil && !answered; {
			var f frames.Frame
			f, err = c.Await("disposition")
			if answered = true; err == nil && f.Fields.Of("state") == nil {
				err = fmt.Errorf("message %d is answered with %v", i, f.Fields)
			}
		}
	}
	return err
}

// acceptNext accepts the next free session of an entity, and releases it.
func acceptNext(c *frames.Conn, entity string, n int) error {
	const filter = "com.microsoft:session-filter"
	err := c.Send(0, "attach", frames.Fields{"name": fmt.Sprint("from ", n), "handle": 0, "role": true, "rcv-settle-mode": 1,
		"source": frames.Composite{Name: "source", Fields: frames.Fields{
			"address": entity, "filter": frames.Map{frames.Symbol(filter), frames.Described{Descriptor: uint64(0x137000000C)}},
		}}, "target": frames.Composite{Name: "target"}})
	if err != nil {
		return err
	}
	f, err := c.Await("attach")
	if err == nil && f.Fields.Of("source") == nil {
		_, err = c.Await("nothing") // says why
	}
	if err == nil {
		err = c.Send(0, "detach", frames.Fields{"handle": 0, "closed": true})
	}
	for err == nil {
		if f, err = c.ReadFrame(); f.Name == "detach" {
			if why := f.Fields["error"]; why != nil {
				err = fmt.Errorf("%w: %v", frames.ErrEnded, why)
			}
			break
		}
	}
	return err
}

// entity creates or deletes an entity. There need not be one to delete.
func (t *target) entity(ctx context.Context, method, name, elements string) error {
	address := t.manage + name
	resource, until := url.QueryEscape(address), strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)
	sum := hmac.New(sha256.New, []byte(busKey))
	sum.Write([]byte(resource + "\n" + until))
	ctx, cancel := context.WithTimeout(ctx, stall)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, address+"?api-version=2021-05", strings.NewReader(
		`<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">`+
			elements+`</QueueDescription></content></entry>`))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "SharedAccessSignature sr="+resource+"&sig="+url.QueryEscape(base64.StdEncoding.EncodeToString(sum.Sum(nil)))+"&se="+until+"&skn="+busRule)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode/100 != 2 && (method != http.MethodDelete || answer.StatusCode != http.StatusNotFound) {
		err = fmt.Errorf("%s %s: %s %.300s", method, address, answer.Status, text)
	}
	return err
}
