package catalog

import (
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// Arguments that nobody reads are stored, as other brokers do: applications
// keep notes there. But an argument must not be without effect because it is
// spelled wrongly, given to the wrong method, or of a later version. The checks
// here are for proposers only, so names may be added.

// method is where arguments are given.
type method struct {
	name string
	// known are the names of arguments that have a meaning there, or none by
	// intent.
	known []string
	// missing are names that have a meaning elsewhere, or will have one. They may
	// be known already.
	missing []string
}

var (
	declareQueue = method{"queue.declare", slices.Concat(argumentNames(queueArguments), foreignArguments, classicArguments,
		[]string{"x-name-prefix"}), nil}
	declareExchange = method{"exchange.declare", append([]string{exchangeTTL, idleArgument}, delayedArguments...), nil}
	consume         = method{"basic.consume", append(argumentNames(consumeArguments), "x-cancel-on-ha-failover"),
		[]string{"x-browse", "x-lock-warning", "x-skip-late"}}
)

func argumentNames(rows []argument) (names []string) {
	for _, a := range rows {
		names = append(names, a.name)
	}
	return names
}

// shared are the names that RabbitMQ knows as well. Given to the wrong method
// they are stored there, and so they are here.
var shared = slices.Concat(foreignArguments, classicArguments, []string{
	"x-queue-type", deadLetterExchange, deadLetterRoutingKey, "x-dead-letter-strategy", "x-expires", "x-message-ttl", "x-max-length", "x-max-length-bytes",
	"x-max-in-memory-length", "x-max-in-memory-bytes", "x-overflow", "x-single-active-consumer", "x-consumer-timeout", "x-consumer-disconnected-timeout",
	"x-quorum-initial-group-size", "x-quorum-target-group-size", "x-queue-leader-locator", "x-delivery-limit",
	"x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max", delayedType, "x-priority", "x-cancel-on-ha-failover",
})

// maxMisspelling is by how many letters a misspelled name differs.
const maxMisspelling = 2

// checkNames refuses the first argument that has no effect although it looks as
// if it were to have one.
func (m *method) checkNames(where string, args *fsm.Table) error {
	for _, f := range args.GetFields() {
		name := f.GetName()
		if !fsm.Extension(name) || slices.Contains(m.known, name) && !slices.Contains(m.missing, name) {
			continue
		}
		if reason := m.strange(name, args); reason != "" {
			return invalidArgument(name, where, reason)
		}
	}
	return nil
}

// strange says why a name that is not known should not be given; empty: nothing
// is known of it. A name is no misspelling of one that is given, too.
func (m *method) strange(name string, args *fsm.Table) string {
	if slices.Contains(m.missing, name) {
		return `"not implemented"`
	}
	for _, other := range []*method{&declareQueue, &consume, &declareExchange} {
		if slices.Contains(other.known, name) && !slices.Contains(shared, name) {
			return fmt.Sprintf("\"an argument of %s, not of %s\"", other.name, m.name)
		}
	}
	if near := nearestArgument(name, m.known, maxMisspelling, args); near != "" {
		return fmt.Sprintf("\"not known, the nearest is '%s'\"", near)
	}
	return ""
}

func nearestArgument(name string, known []string, limit int, args *fsm.Table) string {
	if near := fsm.Nearest(name, known, limit); lookup(args, near) == nil {
		return near
	}
	return ""
}

// checkBindingNames refuses an argument of a headers binding that was to be
// x-match. Other exchanges read no arguments. Such bindings also name headers of
// messages, so the name must differ by one letter only.
func checkBindingNames(kind, where string, args *fsm.Table) error {
	if kind != Headers {
		return nil
	}
	for _, f := range args.GetFields() {
		name := f.GetName()
		if !fsm.Extension(name) || name == matchArgument {
			continue
		}
		if near := nearestArgument(name, []string{matchArgument}, 1, args); near != "" {
			return invalidArgument(name, where, fmt.Sprintf("\"not known, the nearest is '%s'\"", near))
		}
	}
	return nil
}

const matchArgument = "x-match"
