package manage

import (
	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// filterExchange is the type of the exchange of a topic.
const filterExchange = "x-filter"

// Definer says by which commands entities are created and changed.
type Definer struct {
	VHost  string
	View   View
	Limits entity.Limits
}

// Create returns the commands that create an entity together with its parts. rule is
// the first one of a subscription, nil: it has none; else it is nil.
func (x Definer) Create(d *entity.Description, rule *entity.Rule) ([]*logpb.CatalogCommand, error) {
	topic := ""
	if d.Subscription != nil {
		row, err := x.topic(d.Path)
		if err != nil {
			return nil, err
		}
		of, err := entity.Decode(row.GetText())
		if err != nil {
			return nil, err
		}
		topic, d.Path.Name = row.GetName(), of.Path.Name // with the capitals that it was created with
		if err := fitsSubscription(x.View, x.VHost, of.Path); err != nil {
			return nil, err
		}
	}
	to, describe, err := x.describe(d, false)
	if err != nil {
		return nil, err
	}
	name := entity.Address{Path: d.Path}.Object()
	transfers := x.queue(to.Transfers, d.TransferArguments(), name, d.Topic != nil)
	if d.Topic != nil {
		exchange := &logpb.DeclareExchange{Vhost: x.VHost, Name: name, Type: filterExchange, Durable: true, Internal: true, Arguments: d.ExchangeArguments()}
		return []*logpb.CatalogCommand{
			{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: exchange}},
			x.queue(d.Path.Store(), d.StoreArguments(to), name, true),
			transfers,
			describe,
		}, nil
	}
	commands := []*logpb.CatalogCommand{
		x.queue(name, d.Arguments(to), topic, true),
		x.queue(entity.Address{Path: d.Path, Part: entity.DeadLetters}.Object(), d.DeadLetterArguments(to), name, false),
		describe,
	}
	if d.Queue == nil {
		if transfers, err = x.missing(d, to); err != nil {
			return nil, err
		}
	}
	if transfers != nil {
		commands = append(commands, transfers)
	}
	if rule != nil {
		if err := fitRules(x.View, x.VHost, topic, rule); err != nil {
			return nil, err
		}
		bind, err := bindingOf(x.View, x.VHost, d.Path, rule)
		if err != nil {
			return nil, err
		}
		commands = append(commands, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: bind}})
	}
	return commands, nil
}

// topic is the row of the topic of a subscription.
func (x Definer) topic(of entity.Path) (*logpb.Describe, error) {
	parent := entity.Path{Name: of.Name}
	row, ok := x.View.Described(x.VHost, parent.Key())
	if !ok || !row.GetExchange() {
		return nil, refuse(404, 40400, "Not Found. The messaging entity '%s' could not be found.", parent)
	}
	return row, nil
}

// describe checks what an entity is to be, finds its destinations, and returns the command that keeps its description.
func (x Definer) describe(d *entity.Description, changes bool) (to entity.Destinations, describe *logpb.CatalogCommand, err error) {
	if err = check(d, x.Limits); err != nil {
		return to, nil, err
	}
	if to, err = x.destinations(d); err != nil {
		return to, nil, err
	}
	text, err := d.Encode()
	if err != nil {
		return to, nil, err
	}
	return to, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Describe{Describe: &logpb.Describe{
		Vhost: x.VHost, Name: entity.Address{Path: d.Path}.Object(), Exchange: d.Topic != nil, Key: d.Path.Key(), Text: text, Changes: changes,
	}}}, nil
}

// queue declares a queue as a part of something; empty: of nothing.
func (x Definer) queue(name string, arguments *fsm.Table, partOf string, ofExchange bool) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{
		Vhost: x.VHost, Name: name, Durable: true, Arguments: arguments, PartOf: partOf, PartOfExchange: ofExchange && partOf != "",
	}}}
}

// missing declares the queue for what an entity could not hand on, which an earlier build has made neither for queues nor for topics;
// nil: it is there.
func (x Definer) missing(d *entity.Description, to entity.Destinations) (*logpb.CatalogCommand, error) {
	if x.View.HasQueue(x.VHost, to.Transfers) {
		return nil, nil
	}
	owner, arguments := entity.Address{Path: d.Path}.Object(), d.TransferArguments()
	if d.Subscription != nil {
		row, err := x.topic(d.Path)
		if err != nil {
			return nil, err
		}
		owner, arguments = row.GetName(), (&entity.Description{Topic: entity.NewTopic()}).TransferArguments()
	}
	return x.queue(to.Transfers, arguments, owner, d.Queue == nil), nil
}

// Change returns the commands that make of an entity what d says, and give it what it lacks.
func (x Definer) Change(d, was *entity.Description) ([]*logpb.CatalogCommand, error) {
	if err := checkChange(d, was); err != nil {
		return nil, err
	}
	to, describe, err := x.describe(d, true)
	if err != nil {
		return nil, err
	}
	name := entity.Address{Path: d.Path}.Object()
	commands := []*logpb.CatalogCommand{describe}
	switch transfers, err := x.missing(d, to); {
	case err != nil:
		return nil, err
	case transfers != nil:
		commands = append(commands, transfers)
	case d.Queue != nil:
		commands = append(commands, x.arguments(to.Transfers, false, d.TransferArguments()))
	}
	if d.Topic != nil {
		return append(commands, x.arguments(name, true, d.ExchangeArguments()), x.arguments(d.Path.Store(), false, d.StoreArguments(to))), nil
	}
	return append(commands, x.arguments(name, false, d.Arguments(to)),
		x.arguments(entity.Address{Path: d.Path, Part: entity.DeadLetters}.Object(), false, d.DeadLetterArguments(to))), nil
}

func (x Definer) arguments(name string, exchange bool, arguments *fsm.Table) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_ChangeArguments{ChangeArguments: &logpb.ChangeArguments{
		Vhost: x.VHost, Name: name, Exchange: exchange, Arguments: arguments,
	}}}
}

// Deletion is the command that deletes an entity with its parts.
func Deletion(vhost string, d *entity.Description) *logpb.CatalogCommand {
	name := entity.Address{Path: d.Path}.Object()
	if d.Topic != nil {
		return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteExchange{DeleteExchange: &logpb.DeleteExchange{Vhost: vhost, Name: name}}}
	}
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{Vhost: vhost, Name: name}}}
}

// destinations finds the queues that messages of an entity go on to. The names in d become those that its destinations were
// created with.
func (x Definer) destinations(d *entity.Description) (to entity.Destinations, err error) {
	if to.Transfers, err = x.transfers(d.Path); err != nil {
		return to, err
	}
	y := d.Delivery()
	if y == nil {
		return to, nil
	}
	if to.Messages, err = x.destination("ForwardTo", &y.ForwardTo, d.Path); err == nil {
		to.DeadLetters, err = x.destination("ForwardDeadLetteredMessagesTo", &y.ForwardDeadLetteredMessagesTo, d.Path)
	}
	return to, err
}

// transfers is the queue for what an entity could not hand on.
func (x Definer) transfers(p entity.Path) (string, error) {
	if p.Subscription == "" {
		return p.Transfers().Object(), nil
	}
	row, err := x.topic(p)
	if err != nil {
		return "", err
	}
	topic, err := entity.Decode(row.GetText())
	if err != nil {
		return "", err
	}
	return topic.Path.Transfers().Object(), nil
}

func (x Definer) destination(field string, name *string, from entity.Path) (queue string, err error) {
	if *name == "" {
		return "", nil
	}
	p := entity.ForwardPath(*name)
	row, ok := x.View.Described(x.VHost, p.Key())
	switch {
	case !ok:
		return "", &entity.Invalid{Field: field, Text: "there is no entity " + p.String()}
	case p.Key() == from.Key():
		return "", &entity.Invalid{Field: field, Text: "an entity cannot forward to itself"}
	case p.Subscription != "":
		return "", &entity.Invalid{Field: field, Text: "nothing can be forwarded to a subscription"}
	}
	to, err := entity.Decode(row.GetText())
	if err != nil {
		return "", err
	}
	*name = to.Path.String()
	queue, _, _ = messages(to)
	return queue, nil
}
