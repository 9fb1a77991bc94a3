package broker

import (
	"fmt"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// commandWait is how long a command waits for a queue without a leader.
const commandWait = 5 * time.Second

// asked is a publish that asks the broker for something.
type asked struct {
	number    uint64
	mandatory bool
	payload   fsm.Payload
	queue     *catalog.Queue
	what      string // the thing in question, for refusals
	late      *time.Timer
	done      bool // it has been answered
}

// command does what a publish to the command exchange asks for: the routing key
// is the verb, the headers are its arguments. The publish is settled when that
// is done, or as not ok if it cannot be.
func (s *Session) command(v *catalog.View, p *fsm.Publish) {
	a := &asked{number: p.Number, mandatory: p.Mandatory, payload: p.Payload}
	action, known := scheduleVerbs[p.RoutingKey]
	if !known {
		s.refuse(a, nil)
		return
	}
	err := p.HeadersError
	var q *catalog.Queue
	var c *logpb.Schedule
	if err == nil {
		q, c, err = s.schedule(v, action, p.Headers(), a)
	}
	if err != nil {
		s.refuse(a, err)
		return
	}
	a.queue = q
	s.lock()
	defer s.unlock()
	switch to := s.queue(q).stream; {
	case to.Gone():
		s.commandDone(a, fsm.Result{Code: fsm.Gone})
	case to.Over():
		s.commandDone(a, fsm.Result{Code: fsm.NoSession})
	default:
		route := to.Route()
		a.late = time.AfterFunc(commandWait, func() { s.commandLate(a, q, route) })
		to.Add(&logpb.Command{Kind: logpb.Command_SCHEDULE, Schedule: c}, stream.Pending{Note: a})
	}
}

// refuse answers a command that is not passed on.
func (s *Session) refuse(a *asked, why error) {
	s.lock()
	defer s.unlock()
	s.answerCommand(a, false, why)
}

// answerCommand tells the client about a command, once. why nil: there is no
// such verb. The lock is held.
func (s *Session) answerCommand(a *asked, ok bool, why error) {
	if a.done {
		return
	}
	a.done = true
	if a.late != nil {
		a.late.Stop()
	}
	if !ok && a.mandatory {
		s.events = append(s.events, event{kind: eventRefused, payload: a.payload, err: why})
	}
	s.confirmedEvent(a.number, ok)
}

// commandLate looks at a command that has waited for long. It is the work of a
// timer: a panic ends the channel, as nobody else would hear of it.
func (s *Session) commandLate(a *asked, q *catalog.Queue, to *stream.Route) {
	if !s.broker().guard("give a command up", func() { s.giveUp(a, q, to) }) {
		s.fail()
	}
}

// giveUp answers a command whose queue has no leader. If it has one, the command
// is on its way: that is looked at again later.
func (s *Session) giveUp(a *asked, q *catalog.Queue, to *stream.Route) {
	leader, _, _ := to.Leader()
	s.lock()
	defer s.unlock()
	if leader == "" {
		s.answerCommand(a, false, s.broker().leaderless(q))
	} else if !a.done && !s.closing && !s.isLost {
		a.late.Reset(commandWait)
	}
}

// commandDone takes a queue's answer to a command. The lock is held.
func (s *Session) commandDone(a *asked, r fsm.Result) {
	err := s.broker().answerError(logpb.Command_SCHEDULE, a.queue, r.Code)
	if r.Code == fsm.NotFound {
		err = fsm.Refuse(fsm.NotFoundKind, "no "+a.what)
	}
	s.answerCommand(a, err == nil, err)
}

// scheduleVerbs are the verbs about messages that wait for their time.
var scheduleVerbs = map[string]logpb.Schedule_Action{
	"schedule.cancel": logpb.Schedule_CANCEL,
	"schedule.update": logpb.Schedule_MOVE,
	"schedule.fire":   logpb.Schedule_FIRE,
}

// schedule reads the arguments of a verb about messages that wait.
func (s *Session) schedule(v *catalog.View, action logpb.Schedule_Action, headers *fsm.Table, a *asked) (*catalog.Queue, *logpb.Schedule, error) {
	h := argumentsOf(headers)
	q, err := s.scheduleQueue(v, h)
	if err != nil {
		return nil, nil, err
	}
	c := &logpb.Schedule{Action: action}
	var numbers []uint64
	for _, name := range []string{"x-schedule-seq", "x-count"} {
		n, given, err := h.number(name)
		if err == nil && given && n < 1 {
			err = h.invalid(name)
		}
		if err != nil {
			return nil, nil, err
		}
		numbers = append(numbers, uint64(n))
	}
	if c.Id, _, err = h.text("x-schedule-id"); err != nil {
		return nil, nil, err
	}
	c.Message, c.Count = numbers[0], numbers[1]
	given := 0
	for _, is := range []bool{c.Id != "", c.Message != 0, c.Count != 0} {
		if is {
			given++
		}
	}
	if given != 1 || c.Count != 0 && action != logpb.Schedule_FIRE {
		return nil, nil, fsm.Refuse(fsm.Precondition, "a message is named by x-schedule-id or x-schedule-seq, and schedule.fire may have x-count instead")
	}
	a.what = fmt.Sprintf("message '%s' waits in %s", c.Id, q)
	if c.Message != 0 {
		a.what = fmt.Sprintf("message %d waits in %s", c.Message, q)
	}
	if action == logpb.Schedule_MOVE {
		err = h.due(c, v.Setting(catalog.ScheduleMaxDelay))
	}
	return q, c, err
}

// scheduleQueue finds the queue, or the store of the exchange, that a command is
// about.
func (s *Session) scheduleQueue(v *catalog.View, h arguments) (*catalog.Queue, error) {
	queue, isQueue, err := h.text("x-queue")
	if err != nil {
		return nil, err
	}
	exchange, isExchange, err := h.text("x-exchange")
	switch {
	case err != nil:
		return nil, err
	case isQueue == isExchange:
		return nil, fsm.Refuse(fsm.Precondition, "a command names either x-queue or x-exchange")
	case isQueue:
		return v.UseQueue(s.by(), catalog.Read, s.conn.vhost, queue)
	}
	return v.UseStore(s.by(), s.conn.vhost, exchange)
}

// arguments are the headers of a command by name.
type arguments map[string]*logpb.Value

func argumentsOf(t *fsm.Table) arguments {
	h := arguments{}
	for _, f := range t.GetFields() {
		h[f.GetName()] = f.GetValue()
	}
	return h
}

func (h arguments) invalid(name string) error {
	return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid header '%s' of type '%s'", name, fsm.TypeName(h[name].GetTag())))
}

func (h arguments) text(name string) (s string, given bool, err error) {
	v, given := h[name]
	if given && v.GetTag() != 'S' {
		return "", true, h.invalid(name)
	}
	return string(v.GetStr()), given, nil
}

func (h arguments) number(name string) (n int64, given bool, err error) {
	v, given := h[name]
	if given && !strings.ContainsRune("bBsuIilL", rune(v.GetTag())) {
		return 0, true, h.invalid(name)
	}
	return v.GetInt(), given, nil
}

// due reads when a message is to be due: at an instant, or after a delay. What
// lies in the past is now.
func (h arguments) due(c *logpb.Schedule, longest int64) error {
	at, timed, err := h.number("x-opt-delivery-time")
	if err != nil {
		return err
	}
	delay, delayed, err := h.number("x-delay")
	switch {
	case err != nil:
		return err
	case timed == delayed:
		return fsm.Refuse(fsm.Precondition, "schedule.update needs either x-delay or x-opt-delivery-time")
	case delay > longest:
		return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid x-delay '%d': it must be at most %d", delay, longest))
	case timed:
		c.DueAt = max(at, 1)
	default:
		c.DelayPlusOne = uint64(max(delay, 0)) + 1
	}
	return nil
}
