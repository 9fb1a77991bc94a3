package main

import (
	"context"
	"fmt"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/report"
)

// in10 measures in AMQP 1.0; beside: in 0-9-1 before that.
func (b *bench) in10(beside bool, measure func() report.Result) {
	classic, changed := b.target, *b.target
	var r report.Result
	if beside {
		r = measure()
		r.Name += ", AMQP 0-9-1"
		b.keep(r)
	}
	changed.in10, b.target = true, &changed
	defer func() { b.target = classic }()
	other := measure()
	other.Name += ", AMQP 1.0"
	if beside {
		other.Note("rate of 0-9-1's", 100*other.PerSecond/r.PerSecond, "%")
	}
	b.keep(other)
}

// protocolSteps measure AMQP 1.0; beside: each beside 0-9-1.
func (b *bench) protocolSteps(duration time.Duration, beside bool) (all []step) {
	for _, size := range []int{1024, 100, 10 << 10} {
		s := defaultShape
		s.size, s.duration = size, duration
		all = append(all, step{fmt.Sprintf("amqp10 throughput, %d bytes", size), func() {
			b.in10(beside, func() report.Result { return b.throughput(s) })
		}})
	}
	return append(all,
		step{"amqp10 latency", func() { b.in10(beside, func() report.Result { return b.latency(during(duration), 1024) }) }},
		step{"amqp10 rate", func() { b.in10(beside, func() report.Result { return b.fixedRate(during(duration), 1024, 2000) }) }},
	)
}

// speaks10 reports whether brokers answer in AMQP 1.0.
func (t *target) speaks10(ctx context.Context) bool {
	if isNATS(t.uris[0]) {
		return false
	}
	c, err := client.Open(ctx, nil, client.In10(t.uris[0]))
	if err != nil {
		return false
	}
	c.Abandon()
	return true
}
