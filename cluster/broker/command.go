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

// scheduleCommand is a publish with a command about messages that wait for their time.
type scheduleCommand struct {
	number    uint64
	mandatory bool
	payload   fsm.Payload
	queue     *catalog.Queue
	what      string // the object named in refusals
	late      *time.Timer
	done      bool // it has been answered
}

// commandExchange executes what clients publish to the command exchange.
type commandExchange struct {
	conn    *Connection
	calls   *calls
	streams *streams
	tasks   *tasks
	answers *answers
}

// command executes a publish to the command exchange: the routing key is the verb, the headers are
// its arguments. The publish is confirmed when the command is done, and negatively if it cannot be
// done.
func (x *commandExchange) command(v *catalog.View, p *fsm.Publish) {
	a := &scheduleCommand{number: p.Number, mandatory: p.Mandatory, payload: p.Payload}
	action, known := scheduleVerbs[p.RoutingKey]
	if !known {
		x.refuse(a, nil)
		return
	}
	err := p.HeadersError
	var q *catalog.Queue
	var c *logpb.Schedule
	if err == nil {
		q, c, err = x.schedule(v, action, p.Headers(), a)
	}
	if err != nil {
		x.refuse(a, err)
		return
	}
	a.queue = q
	x.calls.lock()
	defer x.calls.unlock()
	switch to := x.streams.queue(q).stream; {
	case to.Gone():
		x.done(a, fsm.Result{Code: fsm.Gone})
	case to.Over():
		x.done(a, fsm.Result{Code: fsm.NoSession})
	default:
		route := to.Route()
		a.late = time.AfterFunc(commandWait, func() { x.overdue(a, q, route) })
		to.Add(&logpb.Command{Kind: logpb.Command_SCHEDULE, Schedule: c}, stream.Pending{Note: a})
	}
}

// refuse answers a command that is not passed on.
func (x *commandExchange) refuse(a *scheduleCommand, why error) {
	x.calls.lock()
	defer x.calls.unlock()
	x.answer(a, false, why)
}

// answer reports the outcome of a command to the client, once. why nil: there is no such verb. The
// lock is held.
func (x *commandExchange) answer(a *scheduleCommand, ok bool, why error) {
	if a.done {
		return
	}
	a.done = true
	if a.late != nil {
		a.late.Stop()
	}
	if !ok && a.mandatory {
		x.calls.add(event{kind: eventRefused, payload: a.payload, err: why})
	}
	x.calls.confirm(a.number, ok)
}

// overdue gives up a command that has waited for too long. It is run by a timer, so a panic ends
// the channel: otherwise nobody would notice.
func (x *commandExchange) overdue(a *scheduleCommand, q *catalog.Queue, to *stream.Route) {
	if !x.tasks.guard("give a command up", func() { x.giveUp(a, q, to) }) {
		x.calls.fail()
	}
}

// giveUp answers a command whose queue has no leader. If it has one, the command is on its way, and
// is checked again later.
func (x *commandExchange) giveUp(a *scheduleCommand, q *catalog.Queue, to *stream.Route) {
	leader, _, _ := to.Leader()
	x.calls.lock()
	defer x.calls.unlock()
	if leader == "" {
		x.answer(a, false, leaderless(q))
	} else if !a.done && !x.calls.closing && !x.calls.isLost {
		a.late.Reset(commandWait)
	}
}

// done handles a queue's answer to a command. The lock is held.
func (x *commandExchange) done(a *scheduleCommand, r fsm.Result) {
	err := x.answers.refusal(logpb.Command_SCHEDULE, a.queue, r.Code)
	if r.Code == fsm.NotFound {
		err = fsm.Refuse(fsm.NotFoundKind, "no "+a.what)
	}
	x.answer(a, err == nil, err)
}

// scheduleVerbs are the verbs about messages that wait for their time.
var scheduleVerbs = map[string]logpb.Schedule_Action{
	"schedule.cancel": logpb.Schedule_CANCEL,
	"schedule.update": logpb.Schedule_MOVE,
	"schedule.fire":   logpb.Schedule_FIRE,
}

// schedule reads the arguments of a verb about messages that wait.
func (x *commandExchange) schedule(v *catalog.View, action logpb.Schedule_Action, headers *fsm.Table, a *scheduleCommand) (*catalog.Queue, *logpb.Schedule, error) {
	h := argumentsOf(headers)
	q, err := x.scheduleQueue(v, h)
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
		return nil, fsm.Refuse(fsm.Precondition, "a command names either x-queue or x-exchange")
	case isQueue:
		return v.UseQueue(x.conn.by(), catalog.Read, x.conn.vhost, queue)
	}
	return v.UseStore(x.conn.by(), x.conn.vhost, exchange)
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

// due reads when a message is to become due: at an instant, or after a delay. A time in the past
// means now.
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
