package session

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// scheduleVerb returns a verb about messages that wait for their time.
func scheduleVerb(action logpb.Schedule_Action) commandVerb {
	return func(x *commandExchange, r *commandRequest) ([]*commandPart, error) {
		q, err := x.scheduleQueue(r.view, r.headers)
		if err != nil {
			return nil, err
		}
		c, err := readSchedule(action, r.headers)
		if err == nil && action == logpb.Schedule_MOVE {
			given := false
			c.DueAt, c.DelayPlusOne, given, err = r.headers.due(r.view.Setting(catalog.ScheduleMaxDelay), x.node.now())
			if err == nil && !given {
				err = fsm.Refuse(fsm.Precondition, "schedule.update requires either x-delay or x-opt-delivery-time")
			}
		}
		if err != nil {
			return nil, err
		}
		what := fmt.Sprintf("message '%s' waits in %s", c.Id, q)
		if c.Message != 0 {
			what = fmt.Sprintf("message %d waits in %s", c.Message, q)
		}
		return []*commandPart{{queue: q, command: &logpb.Command{Kind: logpb.Command_SCHEDULE, Schedule: c}, what: what}}, nil
	}
}

// readSchedule reads which messages a command is about.
func readSchedule(action logpb.Schedule_Action, h arguments) (c *logpb.Schedule, err error) {
	c = &logpb.Schedule{Action: action}
	var numbers []uint64
	for _, name := range []string{"x-schedule-seq", "x-count"} {
		n, given, err := h.number(name)
		if err == nil && given && n < 1 {
			err = h.invalid(name)
		}
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, uint64(n))
	}
	if c.Id, _, err = h.text("x-schedule-id"); err != nil {
		return nil, err
	}
	c.Message, c.Count = numbers[0], numbers[1]
	given := 0
	for _, is := range []bool{c.Id != "", c.Message != 0, c.Count != 0} {
		if is {
			given++
		}
	}
	if given != 1 || c.Count != 0 && action != logpb.Schedule_FIRE {
		return nil, fsm.Refuse(fsm.Precondition, "name a message by x-schedule-id or x-schedule-seq; schedule.fire may have x-count instead")
	}
	return c, nil
}

// scheduleQueue finds the queue, or the store of the exchange, that a command refers to.
func (x *commandExchange) scheduleQueue(v *catalog.View, h arguments) (*catalog.Queue, error) {
	queue, isQueue, err := h.text("x-queue")
	if err != nil {
		return nil, err
	}
	exchange, isExchange, err := h.text("x-exchange")
	switch {
	case err != nil:
		return nil, err
	case isQueue == isExchange:
		return nil, fsm.Refuse(fsm.Precondition, "a command must have either x-queue or x-exchange")
	case isQueue:
		return v.UseQueue(x.conn.by(), catalog.Read, x.conn.vhost, queue)
	}
	return v.UseStore(x.conn.by(), x.conn.vhost, exchange)
}
