package jepsen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/workload"
)

// opsPerRegister bounds how many ops a register sees, so that an order of them is found
// soon.
const opsPerRegister = 60

// registerPlay has a client at each node that declares, binds, changes, reads and deletes
// definitions. A queue, an exchange, a binding, a policy is a register each.
func (r *run) registerPlay(draw *rand.Rand) *play {
	p := &play{History: r.beside("definitions"), name: "definitions", queues: []workload.Queue{{Name: "bound"}}}
	kinds := []func(*definer) register{queueRegister, exchangeRegister, bindingRegister, policyRegister}
	var ops [4]atomic.Int64
	for i, n := range r.Nodes[:3] {
		d := seeded(draw, 20)
		x := &definer{p: p, d: d, node: n, name: fmt.Sprint("definer ", i+1)}
		p.publish = append(p.publish, func(ctx context.Context, enough <-chan struct{}) error {
			defer x.close()
			for ctx.Err() == nil {
				select {
				case <-enough:
					return nil
				default:
				}
				kind := d.below(len(kinds))
				x.number = int(ops[kind].Add(1)-1)/opsPerRegister + 1
				x.step(ctx, kinds[kind](x))
				workload.Wait(ctx, d.within(50*time.Millisecond, 500*time.Millisecond))
			}
			return nil
		})
	}
	p.over = func() bool { return true }
	p.checks = []check{func(h *history.History) checker.Verdict { return checker.Registers(h, recovering) }}
	p.tried = func() error {
		for _, o := range p.Ops {
			if o.Kind == history.Set && o.Result != history.Unknown {
				return nil
			}
		}
		return errors.New("no definition was answered")
	}
	return p
}

// definer changes definitions through one node.
type definer struct {
	p      *play
	d      *dice
	node   *cluster.Node
	name   string
	number int // of the register

	epoch int
	conn  *amqp.Connection
	ch    *amqp.Channel
}

// register is a definition. read is nil if only a comparison shows its value.
type register struct {
	name   string
	kind   string // of what sets it
	values int    // 1 to so many
	set    func(ctx context.Context, value uint64) error
	clear  func(ctx context.Context) error
	read   func(ctx context.Context) (value uint64, err error)
}

var (
	errRefused = errors.New("it has another value")
	errAbsent  = errors.New("it has no value")
)

// step does one thing with a register, and records it.
func (x *definer) step(ctx context.Context, g register) {
	if !x.open(ctx) {
		return
	}
	o := history.Op{Client: fmt.Sprint(x.name, " ", x.epoch), Group: g.name, Call: x.p.Now(), Result: history.Unknown}
	var err error
	switch n := x.d.below(10); {
	case n < 5:
		o.Kind, o.Key = g.kind, uint64(1+x.d.below(max(g.values, 1)))
		err = g.set(ctx, o.Key)
	case n < 8 && g.read != nil:
		o.Kind = history.There
		o.Key, err = g.read(ctx)
	default:
		o.Kind = history.Clear
		err = g.clear(ctx)
	}
	switch {
	case err == nil:
		o.Result = history.OK
	case errors.Is(err, errRefused) || errors.Is(err, errAbsent) && o.Kind == history.Clear:
		o.Result = history.No
	case errors.Is(err, errAbsent):
		o.Kind, o.Result = history.Gone, history.OK
	}
	if o.Result != history.Unknown {
		o.Return = x.p.Now()
	} else {
		x.epoch++ // whose ops are over
	}
	x.p.Did(o)
}

// open has a channel, if the node lets it in.
func (x *definer) open(ctx context.Context) bool {
	if x.ch != nil && !x.ch.IsClosed() {
		return true
	}
	x.close()
	var err error
	if x.conn, err = client.Connect(ctx, x.node.URI()); err == nil {
		x.ch, err = x.conn.Channel()
	}
	return err == nil
}

func (x *definer) close() {
	if x.conn != nil {
		_ = x.conn.CloseDeadline(time.Now().Add(time.Second))
	}
	x.conn, x.ch = nil, nil
}

// refusal turns 406 about another value into errRefused. A queue that is declared and has no leader in
// time is 406, too: it may be there.
func refusal(err error) error {
	var refused *amqp.Error
	if errors.As(err, &refused) && refused.Code == amqp.PreconditionFailed && strings.Contains(refused.Reason, "inequivalent arg") {
		return errRefused
	}
	return err
}

// queueRegister is a queue; its value is its length limit.
func queueRegister(x *definer) register {
	name := fmt.Sprint("defined-", x.number)
	return register{
		name: "queue " + name, kind: history.Set, values: 3,
		set: func(_ context.Context, value uint64) error {
			_, err := x.ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-max-length": int64(value)})
			return refusal(err)
		},
		clear: func(context.Context) error {
			_, err := x.ch.QueueDelete(name, false, false, false)
			return err
		},
	}
}

// exchangeRegister is an exchange; its value is its type.
func exchangeRegister(x *definer) register {
	name := fmt.Sprint("defined-", x.number)
	return register{
		name: "exchange " + name, kind: history.Set, values: 3,
		set: func(_ context.Context, value uint64) error {
			kind := []string{amqp.ExchangeDirect, amqp.ExchangeFanout, amqp.ExchangeTopic}[value-1]
			return refusal(x.ch.ExchangeDeclare(name, kind, true, false, false, false, nil))
		},
		clear: func(context.Context) error { return x.ch.ExchangeDelete(name, false, false) },
	}
}

// bindingRegister is a binding, which is there or not.
func bindingRegister(x *definer) register {
	key := fmt.Sprint("defined-", x.number)
	return register{
		name: "binding " + key, kind: history.Set,
		set: func(context.Context, uint64) error {
			return x.ch.QueueBind("bound", key, amqp.ExchangeDirect, false, nil)
		},
		clear: func(context.Context) error { return x.ch.QueueUnbind("bound", key, amqp.ExchangeDirect, nil) },
		read: func(ctx context.Context) (uint64, error) {
			var all []struct {
				Key string `json:"routing_key"`
			}
			if err := x.node.Call(ctx, http.MethodGet, "/api/queues/%2F/bound/bindings", nil, &all); err != nil {
				return 0, err
			}
			for _, b := range all {
				if b.Key == key {
					return 1, nil
				}
			}
			return 0, errAbsent
		},
	}
}

// policyRegister is a policy that applies to nothing; its value is a TTL.
func policyRegister(x *definer) register {
	p := cluster.Policy{Name: fmt.Sprint("defined-", x.number), Pattern: "^none$", ApplyTo: "queues"}
	return register{
		name: "policy " + p.Name, kind: history.Policy, values: 3,
		set: func(ctx context.Context, value uint64) error {
			p.Definition = map[string]any{"message-ttl": value}
			return x.node.SetPolicy(ctx, p)
		},
		clear: func(ctx context.Context) error {
			_, err := x.call(ctx, http.MethodDelete, p.Path())
			return err
		},
		read: func(ctx context.Context) (uint64, error) { return x.call(ctx, http.MethodGet, p.Path()) },
	}
}

// call makes a call about a policy.
func (x *definer) call(ctx context.Context, method, path string) (value uint64, err error) {
	status, body, err := x.node.Do(ctx, method, path, nil)
	switch {
	case err != nil:
		return 0, err
	case status == http.StatusNotFound:
		return 0, errAbsent
	case status/100 != 2:
		return 0, fmt.Errorf("%d", status)
	case method == http.MethodDelete:
		return 0, nil
	}
	var policy struct {
		Definition struct {
			TTL uint64 `json:"message-ttl"`
		}
	}
	err = json.Unmarshal(body, &policy)
	return policy.Definition.TTL, err
}
