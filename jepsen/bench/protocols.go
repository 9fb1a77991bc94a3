package main

import (
	"fmt"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/report"
)

// inBoth measures the same in AMQP 0-9-1 and in AMQP 1.0, one after the other.
func inBoth(b *bench, measure func() report.Result) {
	classic := measure()
	r := in10(b, measure)
	r.Note("rate of 0-9-1's", 100*r.PerSecond/classic.PerSecond, "%")
	classic.Name += ", AMQP 0-9-1"
	b.keep(classic, r)
}

// in10 measures in AMQP 1.0.
func in10(b *bench, measure func() report.Result) report.Result {
	classic := b.target
	changed := *classic
	changed.in10, b.target = true, &changed
	defer func() { b.target = classic }()
	r := measure()
	r.Name += ", AMQP 1.0"
	return r
}

// protocolSteps measure what AMQP 1.0 costs; how is inBoth or keeps what in10 measures.
func protocolSteps(b *bench, duration time.Duration, how func(b *bench, measure func() report.Result)) (all []step) {
	for _, size := range []int{1024, 100, 10 << 10} {
		s := defaultShape
		s.size, s.duration = size, duration
		all = append(all, step{fmt.Sprintf("amqp10 throughput, %d bytes", size), func() {
			how(b, func() report.Result { return b.throughput(s) })
		}})
	}
	return append(all,
		step{"amqp10 latency", func() { how(b, func() report.Result { return b.latency(during(duration), 1024) }) }},
		step{"amqp10 rate", func() { how(b, func() report.Result { return b.fixedRate(during(duration), 1024, 2000) }) }},
	)
}

// speaks10 reports whether a broker answers in AMQP 1.0.
func speaks10(b *bench) bool {
	if isNATS(b.uris[0]) {
		return false
	}
	l, err := client.Open(b.ctx, nil, client.In10(b.uris[0]))
	if err != nil {
		return false
	}
	l.Abandon()
	return true
}
