package deadletter

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// deadPayload returns a message as its dead letter carries it. What the queue's
// settings say may be longer than a short string: declares and policies of
// former versions were not checked. Then the letter carries as much as it can.
func (s *Sender) deadPayload(c *logpb.QueueConfig, l *fsm.DeadLetter, p fsm.Payload) fsm.Payload {
	properties := p.Properties()
	if c.DelayedStore {
		properties = s.properties.Delayed(properties)
	}
	if isDue(l) {
		return repack(p, string(p.Exchange()), string(p.RoutingKey()), properties, p.BlindKeys())
	}
	key, blind := string(p.RoutingKey()), p.BlindKeys()
	if c.HasDeadLetterRoutingKey {
		key, blind = fsm.Short(c.DeadLetterRoutingKey), nil
		properties = s.properties.Redirected(properties)
	}
	return repack(p, fsm.Short(c.DeadLetterExchange), key, properties, blind)
}

// reenqueue returns what brings a dead message, which is out now and was p, to
// a target. ceiling is what the exchanges on its way allow + 1; 0: no limit.
func (s *Sender) reenqueue(c *logpb.QueueConfig, l *fsm.DeadLetter, p, out fsm.Payload, ceiling uint64) *logpb.Enqueue {
	if isDue(l) {
		return depart(l, out, ceiling)
	}
	return &logpb.Enqueue{
		Size: uint32(len(out)), Head: uint32(out.HeadSize()), Routed: c.DeadLetterExchange != "", TtlCeilingPlusOne: ceiling,
		PriorityPlusOne: uint32(l.Priority) + 1, Deaths: s.deaths(l, p), ScheduledFor: int64(l.ScheduledFor),
	}
}

// repack returns a payload with the body of p, which is valid. The other parts
// are from a payload or short strings: they fit. Should they not, the payload
// stays as it is.
func repack(p fsm.Payload, exchange, key string, properties []byte, blind []string) fsm.Payload {
	size := fsm.PayloadSize(len(exchange), len(key), len(properties), len(p.Body())) + fsm.BlindSize(blind)
	out, err := fsm.AppendHead(make([]byte, 0, size), exchange, key, properties, blind)
	if err != nil {
		return p
	}
	return append(out, p.Body()...)
}

// depart returns what brings a message that has become due, which is out now, to
// a target: as if it had come there when it was due. ceiling is what the
// exchanges on its way since then allow + 1; 0: no limit.
func depart(l *fsm.DeadLetter, out fsm.Payload, ceiling uint64) *logpb.Enqueue {
	if had := l.Ceiling.Stored(); had != 0 && (ceiling == 0 || had < ceiling) {
		ceiling = had
	}
	return &logpb.Enqueue{
		Size: uint32(len(out)), Head: uint32(out.HeadSize()), Routed: true, PriorityPlusOne: uint32(l.Priority) + 1,
		HasExpiration: l.HasExpiration, TtlPlusOne: l.TTL.Stored(), TtlCeilingPlusOne: ceiling, TtlFrom: int64(l.ScheduledFor),
		Deaths: l.Deaths,
	}
}

// delayAt completes what brings a dead message to a queue: at the store of a
// delayed exchange it waits. A delay that is too long is as long as may be.
func (s *Sender) delayAt(to *catalog.Queue, e *logpb.Enqueue, p fsm.Payload) {
	e.DelayPlusOne = 0
	if to.StoreOf != "" {
		longest := fsm.Millis(s.host.View().Setting(catalog.ScheduleMaxDelay))
		e.DelayPlusOne = uint64(min(s.properties.Delay(p.Properties()), longest)) + 1
	}
}
