package clients

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// commanders are the client libraries through which every command is sent, by
// the names of their programs.
var commanders = []library{
	{"pika", script(python, "pika", "pika_commands.py")},
	{"bunny", script(ruby, "bunny", "bunny_commands.rb")},
	{"php-amqplib", script(php, "PhpAmqpLib/autoload.php", "php_commands.php")},
	{"amqplib", script(node, "amqplib", "node_commands.js")},
	{"java", javaProgram("JavaCommands")},
}

// TestCommands sends each command by each library: with a confirm, mandatory, and
// with a direct reply.
func TestCommands(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	c := mustStart(t, ctx)
	for _, l := range commanders {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			cmd, err := l.prepare(ctx, t.TempDir())
			if errors.As(err, new(missing)) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			address := c.Nodes[1].AMQP
			one := mustCommand(t, cmd, address, l.name)
			one.other = mustCommand(t, again(ctx, cmd), address, l.name)
			for name := range strings.SplitSeq(*commandParts, ",") {
				part, ok := parts[name]
				if !ok {
					t.Fatalf("-clients.commands: no part %q", name)
				}
				part(one)
			}
			one.end()
			one.other.end()
		})
	}
}

// again is a command that runs the same program once more.
func again(ctx context.Context, cmd *exec.Cmd) *exec.Cmd {
	other := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	other.Env = cmd.Env
	return other
}

var commandParts = flag.String("clients.commands", "refusals,schedules,settlements,deferral,locks,tokens,groups", "parts of TestCommands, separated by commas")

// parts are what every library is put through.
var parts = map[string]func(*commander){
	"refusals": (*commander).refusals, "schedules": (*commander).schedules, "settlements": (*commander).settlements,
	"deferral": (*commander).deferral, "locks": (*commander).locks, "tokens": (*commander).tokens, "groups": (*commander).groups,
}

// commander is a program that does what it reads, a line each, with tabs between
// fields:
//
//	declare QUEUE ARGUMENT…
//	publish QUEUE BODY HEADER…
//	consume QUEUE TAG ARGUMENT…
//	next
//	command NUMBER VERB BODY HEADER…
//
// Arguments and headers are name=type:value with the types i (integer), s (text)
// and b (boolean), in capitals for lists with commas. It answers with ok, with
//
//	delivery TAG REDELIVERED BODY TOKEN
//	answer ack|nack|returned CODE REPLY
//
// where the token is that of the lock, if the consumer asked for it, and the code
// is that of a basic.return, or 0.
type commander struct {
	t      *testing.T
	prefix string
	in     io.WriteCloser
	out    *bufio.Scanner
	cmd    *exec.Cmd
	said   bytes.Buffer // as errors
	number int          // of commands
	other  *commander   // the same program with a connection of its own
}

func mustCommand(t *testing.T, cmd *exec.Cmd, address, name string) *commander {
	t.Helper()
	c := &commander{t: t, cmd: cmd, prefix: "commands." + name + "."}
	cmd.Args = append(cmd.Args, address)
	cmd.Stderr = &c.said
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.in, c.out = in, bufio.NewScanner(out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return c
}

// do sends a line and returns the fields of the answer.
func (c *commander) do(fields ...string) []string {
	c.t.Helper()
	if _, err := io.WriteString(c.in, strings.Join(fields, "\t")+"\n"); err != nil {
		c.t.Fatalf("%q: %v\n%s", fields, err, c.said.String())
	}
	if !c.out.Scan() {
		_ = c.cmd.Wait() // so that all that it says is there
		c.t.Fatalf("%q: the program has ended\n%s", fields, c.said.String())
	}
	return strings.Split(c.out.Text(), "\t")
}

// end has the program close its connection.
func (c *commander) end() {
	c.t.Helper()
	if err := c.in.Close(); err != nil {
		c.t.Error(err)
	}
	if err := c.cmd.Wait(); err != nil {
		c.t.Errorf("%v\n%s", err, c.said.String())
	}
}

func (c *commander) queue(name string, arguments ...string) string {
	c.t.Helper()
	c.do(append([]string{"declare", c.prefix + name}, arguments...)...)
	return c.prefix + name
}

// next takes a delivery that must have a body, and returns its tag.
func (c *commander) next(body string, redelivered bool) (tag string) {
	c.t.Helper()
	tag, _ = c.nextLocked(body, redelivered)
	return tag
}

// nextLocked is next with the lock's token.
func (c *commander) nextLocked(body string, redelivered bool) (tag, token string) {
	c.t.Helper()
	again := "0"
	if redelivered {
		again = "1"
	}
	d := c.do("next")
	if len(d) != 5 || d[2] != again || d[3] != body {
		c.t.Fatalf("delivered %q, not %q, redelivered %v", d, body, redelivered)
	}
	return d[1], d[4]
}

// reply is the answer to a command as JSON.
type reply struct {
	OK      bool
	Code    int
	Error   string
	Results []struct {
		DeliveryTag uint64 `json:"delivery_tag"`
		OK          bool
		Code        int
		LockedUntil int64  `json:"locked_until"`
		Remaining   int64  `json:"remaining_ms"`
		State       []byte `json:"state"`
	}
}

// command sends a command that must be refused with a code; 0: it must take effect.
func (c *commander) command(code int, verb, body string, headers ...string) (r reply) {
	c.t.Helper()
	c.number++
	answer := c.do(append([]string{"command", strconv.Itoa(c.number), verb, body}, headers...)...)
	if len(answer) != 4 || answer[0] != "answer" {
		c.t.Fatalf("%s: %q", verb, answer)
	}
	if err := json.Unmarshal([]byte(answer[3]), &r); err != nil {
		c.t.Fatalf("%s: %q: %v", verb, answer, err)
	}
	if acked := answer[1] == "ack"; acked != (code == 0) || answer[2] != strconv.Itoa(code) || r.OK != acked || r.Code != code {
		c.t.Fatalf("%s %q: %q, want code %d", verb, headers, answer, code)
	}
	return r
}

func tagged(tag string) string { return "x-delivery-tag=i:" + tag }

// refusals are answered as such, and the channel stays open.
func (c *commander) refusals() {
	c.t.Helper()
	q := c.queue("refusals")
	c.command(312, "no.verb", "")
	c.command(406, "schedule.cancel", "", "x-queue=s:"+q)
	c.command(406, "lock.renew", "", "x-delivery-tag=s:first")
	c.command(404, "message.settle", "", tagged("7777"), "x-outcome=s:ack")
}

func (c *commander) schedules() {
	c.t.Helper()
	q := c.queue("schedules")
	for _, id := range []string{"a", "b", "c"} {
		c.do("publish", q, id, "x-opt-delivery-delay=i:3600000", "x-schedule-id=s:"+id)
	}
	at := "x-queue=s:" + q
	c.do("consume", q, "schedules")
	c.command(0, "schedule.cancel", "", at, "x-schedule-id=s:a")
	c.command(404, "schedule.cancel", "", at, "x-schedule-id=s:a")
	c.command(0, "schedule.update", "", at, "x-schedule-id=s:b", "x-delay=i:50")
	b := c.next("b", false)
	c.command(0, "schedule.fire", "", at, "x-schedule-id=s:c")
	c.command(404, "schedule.fire", "", at, "x-schedule-id=s:c")
	last := c.next("c", false)
	c.command(0, "message.settle", "", "x-delivery-tags=I:"+b+","+last, "x-outcome=s:ack")
}

func (c *commander) settlements() {
	c.t.Helper()
	q := c.queue("settlements")
	c.do("consume", q, "settlements")
	c.do("publish", q, "one")
	tag := c.next("one", false)
	c.command(0, "message.settle", "", tagged(tag), "x-outcome=s:requeue")
	c.command(404, "message.settle", "", tagged(tag), "x-outcome=s:ack")
	tag = c.next("one", true)
	r := c.command(0, "message.retry", "", tagged(tag), "x-delay=i:50")
	if len(r.Results) != 1 || strconv.FormatUint(r.Results[0].DeliveryTag, 10) != tag || !r.Results[0].OK {
		c.t.Errorf("%+v", r)
	}
	tag = c.next("one", true)
	c.command(406, "message.settle", "", tagged(tag), "x-outcome=s:nonsense")
	c.do("publish", q, "two")
	other := c.next("two", false)
	c.command(0, "message.settle", "", "x-delivery-tags=I:"+tag+","+other, "x-outcome=s:reject")
}

func (c *commander) deferral() {
	c.t.Helper()
	q := c.queue("deferral")
	c.do("consume", q, "deferral")
	c.do("publish", q, "later")
	tag := c.next("later", false)
	c.command(0, "message.defer", "", tagged(tag), "x-deferral-token=s:the token")
	from := []string{"x-queue=s:" + q, "x-consumer-tag=s:deferral"}
	c.command(404, "message.receive-deferred", "", append(from, "x-deferral-token=s:another")...)
	c.command(0, "message.receive-deferred", "", append(from, "x-deferral-tokens=S:the token")...)
	tag = c.next("later", true)
	c.command(404, "message.receive-deferred", "", append(from, "x-deferral-token=s:the token")...)
	c.command(0, "message.settle", "", tagged(tag), "x-outcome=s:ack")
}

// locks are renewed by tag, by list, by consumer and up to a tag.
func (c *commander) locks() {
	c.t.Helper()
	q := c.queue("locks")
	c.do("consume", q, "locks", "x-lock-duration=i:30000")
	c.do("publish", q, "one")
	c.do("publish", q, "two")
	one, two := c.next("one", false), c.next("two", false)
	for _, headers := range [][]string{
		{tagged(one)}, {"x-delivery-tags=I:" + one + "," + two}, {"x-consumer-tag=s:locks"}, {tagged(two), "x-multiple=b:true"},
		{tagged(one), "x-lock-duration=i:40000"},
	} {
		r := c.command(0, "lock.renew", "", headers...)
		if len(r.Results) == 0 || r.Results[0].Remaining < 20_000 || r.Results[0].LockedUntil == 0 {
			c.t.Errorf("%q: %+v", headers, r)
		}
	}
	c.command(0, "message.settle", "", tagged(one), "x-outcome=s:ack")
	c.command(404, "lock.renew", "", tagged(one))
	r := c.command(404, "lock.renew", "", "x-delivery-tags=I:"+one+","+two)
	if len(r.Results) != 2 || r.Results[0].OK || !r.Results[1].OK {
		c.t.Errorf("one lost, one held: %+v", r)
	}
	c.command(0, "message.settle", "", tagged(two), "x-outcome=s:ack")
}

// tokens name locks to another connection, which renews and settles.
func (c *commander) tokens() {
	c.t.Helper()
	q := c.queue("tokens")
	c.do("consume", q, "tokens", "x-lock-duration=i:30000", "x-delivery-info=b:true")
	c.do("publish", q, "one")
	c.do("publish", q, "two")
	tag, one := c.nextLocked("one", false)
	_, two := c.nextLocked("two", false)
	if one == "" || two == "" || one == two {
		c.t.Fatalf("tokens %q and %q", one, two)
	}
	for _, headers := range [][]string{
		{"x-lock-token=s:" + one, "x-queue=s:" + q, "x-lock-duration=i:60000"}, {"x-lock-tokens=S:" + one + "," + two, "x-lock-duration=i:60000"},
	} {
		r := c.other.command(0, "lock.renew", "", headers...)
		for _, result := range r.Results {
			if result.Remaining <= 30_000 || result.LockedUntil == 0 { // as long as the consumer has asked for
				c.t.Errorf("%q: %+v", headers, r)
			}
		}
		if len(r.Results) != strings.Count(headers[0], ",")+1 {
			c.t.Errorf("%q: %+v", headers, r)
		}
	}
	c.other.command(404, "lock.renew", "", tagged(tag)) // a tag is one of the channel
	c.other.command(0, "message.settle", "", "x-lock-token=s:"+one, "x-outcome=s:ack")
	c.other.command(404, "lock.renew", "", "x-lock-token=s:"+one)
	r := c.other.command(404, "lock.renew", "", "x-lock-tokens=S:"+one+","+two)
	if len(r.Results) != 2 || r.Results[0].OK || !r.Results[1].OK {
		c.t.Errorf("one settled, one held: %+v", r)
	}
	c.command(0, "message.settle", "", "x-lock-token=s:"+two, "x-outcome=s:ack")
}

func (c *commander) groups() {
	c.t.Helper()
	q := c.queue("groups", "x-message-groups=b:true")
	c.do("consume", q, "groups", "x-lock-duration=i:30000")
	c.do("publish", q, "one", "x-group-id=s:g")
	tag := c.next("one", false)
	group := []string{"x-queue=s:" + q, "x-group-id=s:g", "x-consumer-tag=s:groups"}
	c.command(0, "group.renew", "", group...)
	c.command(0, "group.set-state", "half done", group...)
	r := c.command(0, "group.get-state", "", group...)
	if len(r.Results) != 1 || string(r.Results[0].State) != "half done" {
		c.t.Errorf("state: %+v", r)
	}
	c.command(0, "message.settle", "", tagged(tag), "x-outcome=s:ack")
	c.do("publish", q, "two", "x-group-id=s:g")
	c.next("two", false)
	c.command(0, "group.release", "", group...)
	tag = c.next("two", true)
	c.command(0, "message.settle", "", tagged(tag), "x-outcome=s:ack")
	c.command(404, "group.renew", "", "x-queue=s:"+q, "x-group-id=s:nobody", "x-consumer-tag=s:groups")
}
