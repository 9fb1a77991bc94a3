package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// takeVerbs delete, move, copy and redrive messages that are ready.
func takeVerbs() []verb {
	which := []option{
		{"messages", "only those with these `NUMBERS`, with commas between, as peek shows them", ""},
		{"message-id", "only those with this `ID`", ""},
		{"match", "only those with the header `HEADER=VALUE`", ""},
		{"older-than", "only those that are ready for `MILLISECONDS`", ""},
		{"younger-than", "only those that are ready for less than `MILLISECONDS`", ""},
		{"reason", "only dead letters that died for `REASON`, such as rejected", ""},
		{"source", "only dead letters that died in the queue `NAME`", ""},
		{"count", "at most `COUNT`, the oldest first", ""},
	}
	rate := option{"rate", "at most `RATE` messages in a second", ""}
	const more = " Shows how many. Messages that somebody holds are left alone."
	return []verb{
		{name: "delete_messages", arguments: "QUEUE", least: 1, maxArguments: 1, about: "deletes ready messages of a queue, which the options say", more: more, options: append(which, rate), run: taking("messages/delete"), example: "orders --match customer=4711"},
		{name: "move_messages", arguments: "QUEUE TARGET", least: 2, maxArguments: 2, about: "moves ready messages of a queue to another one of its vhost, each exactly once", more: more, options: append(which, rate), run: taking("messages/move"), example: "orders later --older-than 3600000"},
		{name: "copy_messages", arguments: "QUEUE TARGET", least: 2, maxArguments: 2, about: "copies ready messages of a queue to another one of its vhost", more: more, options: append(which, rate), run: taking("messages/copy"), example: "orders test --count 10"},
		{name: "redrive", arguments: "QUEUE [TARGET]", least: 1, maxArguments: 2, about: "sends the dead letters of a queue back to where they died, or to another queue, each exactly once", more: more + " Those that died in a queue that is gone, or in none, stay. With a rate the queue goes on with it by itself, also if this program ends before.", options: append(which, rate, option{"detach", "does not wait until it ends", ""}), run: func(c *call) error { return (&taker{c, "redrive"}).redrive() }, example: "failed --reason rejected --source orders --rate 100 --detach"},
		{name: "cancel_redrive", arguments: "QUEUE", least: 1, maxArguments: 1, about: "ends the redrive that a queue goes on with", more: " Letters that are on their way arrive.", run: func(c *call) error { return (&taker{c, "redrive"}).cancel() }, example: "failed"},
	}
}

const (
	// takenAtOnce is how many messages one request takes.
	takenAtOnce = 1000
	// takeTries is how often a request is made that gets no answer, a second apart. What the first one has taken, the
	// second one does not find; but copies would be made twice.
	takeTries = 30
)

// taking returns a verb that takes messages, in steps. None of them has come since it began.
func taking(action string) func(*call) error {
	return func(c *call) error {
		t := &taker{c, action}
		body, err := t.selection()
		if err != nil {
			return err
		}
		if len(c.words) > 1 {
			body["to"] = c.words[1]
		}
		count, err := t.positive("count")
		if err != nil {
			return err
		}
		rate, err := t.positive("rate")
		if err != nil {
			return err
		}
		step := uint64(takenAtOnce)
		if rate > 0 {
			step = min(max(rate/10, 1), step)
		}
		sum, began := api.Taken{}, time.Now()
		for {
			if rate > 0 {
				body["limit"] = step
			}
			if count > 0 {
				body["limit"] = min(step, count-sum.Messages)
			}
			r, err := t.take(body)
			if err != nil {
				return fmt.Errorf("%w (%d messages so far)", err, sum.Messages)
			}
			sum.Messages, sum.SourceGone, sum.NoSource = sum.Messages+r.Messages, sum.SourceGone+r.SourceGone, sum.NoSource+r.NoSource
			if r.Next == "" || count > 0 && sum.Messages >= count {
				break
			}
			body["after"] = r.Next
			if rate > 0 {
				time.Sleep(time.Until(began.Add(time.Duration(float64(sum.Messages) / float64(rate) * float64(time.Second)))))
			}
		}
		_, err = fmt.Fprintln(c.out, sum.Messages)
		if n := sum.SourceGone + sum.NoSource; err == nil && n > 0 {
			_, err = fmt.Fprintf(c.errOut, "%d stay: the queues of %d are gone, and %d did not die in another queue\n", n, sum.SourceGone, sum.NoSource)
		}
		return err
	}
}

// redriveEvery is how often the redrive of a queue is asked about.
const redriveEvery = 200 * time.Millisecond

// redrive redrives by requests, or at a rate, which the queue goes on with.
func (c *taker) redrive() error {
	if !c.given("rate") && !c.given("detach") {
		return taking("redrive")(c.call)
	}
	body, err := c.selection()
	if err != nil {
		return err
	}
	body["all"] = true
	if len(c.words) > 1 {
		body["to"] = c.words[1]
	}
	for name, key := range map[string]string{"rate": "rate", "count": "limit"} {
		n, err := c.positive(name)
		if err != nil {
			return err
		}
		if n > 0 {
			body[key] = n
		}
	}
	var begun api.Redriving
	if err := c.post(path("queues", c.options.vhost, c.words[0])+"/redrive", body, &begun); err != nil || c.given("detach") {
		return err
	}
	for failures := 0; ; time.Sleep(redriveEvery) {
		var q struct {
			Redrive *api.Redrive `json:"redrive"`
		}
		err := c.get(path("queues", c.options.vhost, c.words[0]), &q)
		code := exitCodeOf(err)
		switch r := q.Redrive; {
		case err == nil && r != nil && (r.Number != begun.Number || r.Ended != nil):
			return c.redriven(r, begun.Number)
		case err == nil && r != nil:
			failures = 0
			continue
		case err == nil: // no leader answers
			err, code = errors.New("the queue does not answer"), exitTemporary
		}
		if failures++; code != exitTemporary && code != exitUnavailable || failures == takeTries*int(time.Second/redriveEvery) {
			return fmt.Errorf("%w: the queue goes on with the redrive by itself", err)
		}
	}
}

// redriven says what has become of a redrive, by what is known of the last one.
func (c *taker) redriven(r *api.Redrive, number uint64) error {
	if r.Number != number {
		return errors.New("it has ended, and another redrive has begun since")
	}
	if _, err := fmt.Fprintln(c.out, r.Taken); err != nil {
		return err
	}
	if r.Why != "" {
		return errors.New(r.Why)
	}
	if n := r.SourceGone + r.NoSource + r.Refused; n > 0 {
		_, err := fmt.Fprintf(c.errOut, "%d stay: the queues of %d are gone, %d did not die in another queue, and where %d died %s may not write\n", n, r.SourceGone, r.NoSource, r.Refused, r.By)
		return err
	}
	return nil
}

func (c *taker) cancel() error {
	var done api.Changed
	if err := c.client.do(c, http.MethodDelete, path("queues", c.options.vhost, c.words[0])+"/redrive", nil, &done); err != nil {
		return err
	}
	if !done.Changed {
		_, err := fmt.Fprintln(c.out, "no redrive goes on")
		return err
	}
	return nil
}

// taker takes messages as the options of a call say.
type taker struct {
	*call
	action string
}

// take makes one request.
func (c *taker) take(body map[string]any) (r api.Taken, err error) {
	for n := 1; ; n++ {
		err = c.post(path("queues", c.options.vhost, c.words[0])+"/"+c.action, body, &r)
		code := exitCodeOf(err)
		if err == nil || code != exitTemporary && code != exitUnavailable || c.action == "messages/copy" || n == takeTries {
			return r, err
		}
		time.Sleep(time.Second)
	}
}

// positive reads an option that is a whole number from 1; 0: it is not given.
func (c *taker) positive(name string) (uint64, error) {
	if !c.given(name) {
		return 0, nil
	}
	n, err := strconv.ParseUint(c.option(name), 10, 63)
	if err != nil || n == 0 {
		return 0, usageError("--%s must be a whole number from 1, not %q", name, c.option(name))
	}
	return n, nil
}

// selection returns the body of a request that says which messages are meant.
func (c *taker) selection() (map[string]any, error) {
	body := map[string]any{}
	for name, key := range map[string]string{"message-id": "message_id", "reason": "reason", "source": "source"} {
		if c.given(name) {
			body[key] = c.option(name)
		}
	}
	for name, key := range map[string]string{"older-than": "older_than", "younger-than": "younger_than"} {
		n, err := c.positive(name)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			body[key] = n
		}
	}
	if c.given("match") {
		header, value, ok := strings.Cut(c.option("match"), "=")
		if !ok || header == "" {
			return nil, usageError("--match must be HEADER=VALUE, not %q", c.option("match"))
		}
		body["headers"] = map[string]string{header: value}
	}
	if c.given("messages") {
		var list []json.Number
		for word := range strings.SplitSeq(c.option("messages"), ",") {
			if n, err := strconv.ParseUint(word, 10, 63); err != nil || n == 0 {
				return nil, usageError("--messages must be numbers of messages with commas between, not %q", c.option("messages"))
			}
			list = append(list, json.Number(word))
		}
		body["messages"] = list
	}
	return body, nil
}
