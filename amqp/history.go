package amqp

import (
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Bounds of what is taken from a history that a client sent.
const (
	maxHistory      = 64                // pairs of queue and reason
	maxHistoryKeys  = 64                // routing keys of one
	maxHistoryCount = math.MaxInt64 / 2 // deaths of one
)

const (
	headerDeath       = "x-death"
	headerFirstReason = "x-first-death-reason"
	headerFirstQueue  = "x-first-death-queue"
)

// Deaths returns the history in the header x-death of a message as it was
// published, newest first: what a client read and published again, or what a
// server wrote that made an entry of each death and counted none. Entries of the
// same pair are one. What is no entry is left out. nil: the history of a message
// begins with its first death here.
func (how Properties) Deaths(raw []byte) []*logpb.Death {
	if !how.ContinueHistory {
		return nil
	}
	p, err := wire.ParseProperties(raw)
	if err != nil {
		return nil
	}
	header, ok := p.Header(headerDeath)
	if !ok || header.Tag != wire.TagArray {
		return nil
	}
	var deaths []*logpb.Death
	for i := range header.Array {
		d := readDeath(header.Array[i].Table)
		if d == nil {
			continue
		}
		same := slices.IndexFunc(deaths, func(o *logpb.Death) bool { return o.Reason == d.Reason && o.Queue == d.Queue })
		switch {
		case same >= 0:
			deaths[same].Count = min(deaths[same].Count+d.Count, maxHistoryCount)
		case len(deaths) < maxHistory:
			deaths = append(deaths, d)
		}
	}
	if len(deaths) > 0 {
		firstDeath(&p, deaths).First = true
	}
	return deaths
}

// firstDeath finds the entry of a history that its message's headers call the
// first. If there is none it is the oldest.
func firstDeath(p *wire.Properties, deaths []*logpb.Death) *logpb.Death {
	reason, _ := p.Header(headerFirstReason)
	queue, _ := p.Header(headerFirstQueue)
	for _, d := range deaths {
		if reasonName(d.Reason) == reason.Str && d.Queue == queue.Str {
			return d
		}
	}
	return deaths[len(deaths)-1]
}

// readDeath reads an entry of a history; nil: it is none.
func readDeath(t wire.Table) *logpb.Death {
	text := func(name string) string {
		if v, _ := t.Get(name); isShortText(&v) {
			return v.Str
		}
		return ""
	}
	d := &logpb.Death{
		Reason: reasonNamed(text("reason")), Queue: text("queue"), Exchange: text("exchange"),
		OriginalExpiration: text("original-expiration"), Count: 1,
	}
	if d.Reason == logpb.Death_NONE || d.Queue == "" {
		return nil
	}
	if v, _ := t.Get("count"); v.Int > 1 && strings.IndexByte("bBsuIil", v.Tag) >= 0 {
		d.Count = min(uint64(v.Int), maxHistoryCount)
	}
	if v, _ := t.Get("time"); v.Tag == wire.TagTimestamp {
		d.Time = min(max(v.Int, 0), int64(fsm.MaxTime)/1000) * 1000
	}
	keys, _ := t.Get("routing-keys")
	for i := range keys.Array[:min(len(keys.Array), maxHistoryKeys)] {
		if k := &keys.Array[i]; isShortText(k) {
			d.RoutingKeys = append(d.RoutingKeys, k.Str)
		}
	}
	return d
}

// isShortText reports whether a short string can hold a value.
func isShortText(v *wire.Value) bool {
	return v.Tag == wire.TagString && len(v.Str) <= fsm.MaxShort && utf8.ValidString(v.Str)
}

// reasonNamed is the inverse of reasonName.
func reasonNamed(name string) logpb.Death_Reason {
	for r := logpb.Death_EXPIRED; r <= logpb.Death_MAXHOPS; r++ {
		if reasonName(r) == name {
			return r
		}
	}
	return logpb.Death_NONE
}

const (
	headerRemarkReason      = "x-dead-letter-reason"
	headerRemarkDescription = "x-dead-letter-description"
)

// Remarked returns the properties of a dead letter with what its last receiver
// has said about it as headers, and without what an earlier one has. The result
// may be the argument.
func (Properties) Remarked(raw []byte, remark fsm.Remark) []byte {
	p, err := wire.ParseProperties(raw)
	if err != nil {
		return raw
	}
	var e wire.Edit
	for _, h := range [...]struct{ name, text string }{
		{headerRemarkReason, remark.Reason}, {headerRemarkDescription, remark.Description},
	} {
		if h.text != "" {
			e.SetHeaders = append(e.SetHeaders, wire.Field{Name: h.name, Value: wire.String(h.text)})
		} else if _, ok := p.Header(h.name); ok {
			e.RemoveHeaders = append(e.RemoveHeaders, h.name)
		}
	}
	if len(e.SetHeaders)+len(e.RemoveHeaders) == 0 {
		return raw
	}
	out, err := wire.EditProperties(nil, raw, &e)
	if err != nil {
		return raw
	}
	return out
}

// Redirected returns the properties of a dead letter that goes by the routing
// key of its queue. The result may be the argument.
func (how Properties) Redirected(raw []byte) []byte {
	p, err := wire.ParseProperties(raw)
	if err != nil || !how.ContinueHistory {
		return raw
	}
	if _, ok := p.Header(headerCC); !ok {
		return raw
	}
	out, err := wire.EditProperties(nil, raw, &wire.Edit{RemoveHeaders: []string{headerCC}})
	if err != nil {
		return raw
	}
	return out
}
