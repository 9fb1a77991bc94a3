package manage

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/proto/logpb"
)

// Imported says what an import has done, or would do, with one entity of a file.
type Imported struct {
	Entity  string `json:"entity"`
	Outcome string `json:"outcome"`
	// Differs are the properties that were otherwise, each with what it was and what the file says, and rules.
	Differs []string `json:"differs"`
}

// The outcomes.
const (
	Created = "created"
	Changed = "changed"
	Same    = "same"
)

// Import creates the entities of a file that are missing, and changes the others to what it says; with dry it only says
// what it would do. It deletes nothing but rules of its subscriptions that it does not name. It can be done again. With an
// error it returns what was done before.
func (f *File) Import(ctx context.Context, b Broker, vhost string, limits entity.Limits, dry bool) (done []Imported, err error) {
	for _, d := range f.Entities {
		x, err := f.take(ctx, b, vhost, limits, d, dry)
		if err != nil {
			return done, fmt.Errorf("%s: %w", d.Path, err)
		}
		done = append(done, x)
	}
	return done, nil
}

func (f *File) take(ctx context.Context, b Broker, vhost string, limits entity.Limits, d *entity.Description, dry bool) (r Imported, err error) {
	limits.Complete(d)
	v := b.View(ctx)
	x := Definer{vhost, v, limits}
	row, there := v.Described(vhost, d.Path.Key())
	r = Imported{d.Path.String(), Created, []string{}}
	var commands []*logpb.CatalogCommand
	switch {
	case !there && dry: // what it needs may be missing, too
		return r, check(d, limits)
	case !there:
		commands, err = x.Create(d, nil)
	default:
		was, bad := entity.Decode(row.GetText())
		if bad != nil {
			return r, bad
		}
		d.Path = was.Path
		keepSchemes(d, was)
		if commands, err = x.Change(d, was); err == nil && bytes.Equal(commands[0].GetDescribe().GetText(), row.GetText()) {
			commands = nil
		}
		r.Entity, r.Outcome, r.Differs = d.Path.String(), Same, differences(was, d)
	}
	if err != nil {
		return r, err
	}
	more, err := ruleChanges(v, vhost, d.Path, v.Rules(vhost, entity.Address{Path: d.Path}.Object()), f.Rules[d.Path.Key()])
	if err == nil {
		err = fitRules(v, vhost, exchangeOf(v, vhost, d.Path), rulesOf(more)...)
	}
	if err != nil {
		return r, err
	}
	if there {
		r.Differs = append(r.Differs, rulesIn(more)...)
	}
	if commands = append(commands, more...); len(commands) == 0 {
		return r, nil
	}
	if there {
		r.Outcome = Changed
	}
	if dry {
		return r, nil
	}
	return r, b.Change(ctx, "import "+d.Path.String(), commands...)
}

// keepSchemes has the destinations of an entity shown as they were, as far as they are the same: a file has paths.
func keepSchemes(d, was *entity.Description) {
	x, y := d.Delivery(), was.Delivery()
	if x == nil || y == nil {
		return
	}
	if x.ForwardTo == y.ForwardTo {
		x.ForwardScheme = y.ForwardScheme
	}
	if x.ForwardDeadLetteredMessagesTo == y.ForwardDeadLetteredMessagesTo {
		x.ForwardDeadLetteredScheme = y.ForwardDeadLetteredScheme
	}
}

// differences are the properties that two descriptions of a kind have otherwise.
func differences(was, now *entity.Description) []string {
	list := []string{}
	for _, p := range properties {
		before, _ := show(was, p.name)
		if after, _ := show(now, p.name); after != before {
			list = append(list, fmt.Sprintf("%s: %s, was %s", p.name, cmp.Or(after, "empty"), cmp.Or(before, "empty")))
		}
	}
	return list
}

// rulesIn names the rules that commands change: those that go come first.
func rulesIn(commands []*logpb.CatalogCommand) (list []string) {
	for _, c := range commands {
		if b := c.GetUnbind(); b != nil {
			list = append(list, "rule "+b.GetRoutingKey()+" goes")
		}
		if b := c.GetBind(); b != nil {
			list = append(list, "rule "+b.GetRoutingKey()+" comes")
		}
	}
	return list
}

// importPath is where a file goes. It cannot be the name of an entity.
const importPath = "$import"

// importRequest asks for an import.
type importRequest struct {
	File     string `json:"file"`     // its text
	Emulator bool   `json:"emulator"` // what it does not say is as the emulator has it
	DryRun   bool   `json:"dry_run"`
}

// importFile imports the file in the body, and answers with a list of Imported.
func (c *call) importFile() (int, error) {
	var q importRequest
	d := json.NewDecoder(c.r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		return 0, &entity.Invalid{Text: "The body is not a request for an import: " + err.Error()}
	}
	f, err := ParseFile([]byte(q.File), q.Emulator)
	if err != nil {
		return 0, &entity.Invalid{Text: err.Error()}
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), importWait)
	defer cancel()
	done, err := f.Import(ctx, c.Broker, c.vhost, c.Limits, q.DryRun)
	var invalid *entity.Invalid
	switch {
	case errors.As(err, &invalid):
		return 0, &entity.Invalid{Text: err.Error()} // with the entity's name
	case err != nil:
		return 0, err
	}
	c.Header().Set("Content-Type", "application/json")
	return http.StatusOK, json.NewEncoder(c).Encode(done)
}

// ruleChanges are the commands that make of the rules of a subscription those that are wanted.
func ruleChanges(v View, vhost string, of entity.Path, have []*logpb.Bind, want []*entity.Rule) (list []*logpb.CatalogCommand, err error) {
	kept := map[string]bool{}
	for _, r := range want {
		bind, err := bindingOf(v, vhost, of, r)
		if err != nil {
			return nil, err
		}
		program := bind.GetArguments().GetFields()[0].GetValue().GetStr()
		if slices.ContainsFunc(have, func(b *logpb.Bind) bool {
			return b.GetRoutingKey() == r.Name && len(b.GetArguments().GetFields()) == 1 && bytes.Equal(b.GetArguments().GetFields()[0].GetValue().GetStr(), program)
		}) {
			kept[r.Name] = true
			continue
		}
		list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: bind}})
	}
	for _, b := range have {
		if _, isRule := ruleOf(b); isRule && !kept[b.GetRoutingKey()] {
			list = append([]*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_Unbind{Unbind: b}}}, list...)
		}
	}
	return list, nil
}
