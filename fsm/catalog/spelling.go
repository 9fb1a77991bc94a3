package catalog

import (
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// Arguments that nobody reads are stored, as other brokers do: applications
// keep notes there. But an argument must not be without effect because it is
// spelled wrongly, given to the wrong method, of a later version, or of another
// broker. The checks here are for proposers only, so names may be added. What a
// queue or an exchange has since before is not refused when it is declared again.

// method is where arguments are given.
type method struct {
	name string
	// known are the names of arguments that have a meaning there, or none by
	// intent.
	known []string
	// missing are names that have a meaning elsewhere, or will have one. They may
	// be known already.
	missing []string
	// elsewhere are names that have a meaning in other brokers, and what to use.
	elsewhere map[string]string
}

var (
	declareQueue = method{"queue.declare", slices.Concat(argumentNames(queueArguments), foreignArguments, classicArguments,
		[]string{"x-name-prefix"}), nil, queuesElsewhere}
	declareExchange = method{"exchange.declare", append([]string{exchangeTTL, idleArgument}, delayedArguments...), nil, exchangesElsewhere}
	consume         = method{"basic.consume", append(argumentNames(consumeArguments), "x-cancel-on-ha-failover"),
		[]string{"x-browse", "x-lock-warning", "x-skip-late"}, consumersElsewhere}
)

// Names of arguments in other brokers: plug-ins of RabbitMQ and LavinMQ, and the words
// of Azure Service Bus, Amazon SQS and NATS JetStream with an x- in front. What is
// not a name of an argument says how else it is done.
var (
	queuesElsewhere = map[string]string{
		"x-message-deduplication":                   "x-dedup-window",
		"x-deduplication-header":                    "x-dedup-window, which compares the message_id",
		"x-cache-size":                              "x-dedup-window",
		"x-cache-ttl":                               "x-dedup-window",
		"x-cache-persistence":                       "x-dedup-window",
		"x-duplicate-window":                        "x-dedup-window",
		"x-duplicate-detection":                     "x-dedup-window",
		"x-duplicate-detection-window":              "x-dedup-window",
		"x-duplicate-detection-history-time-window": "x-dedup-window",
		"x-requires-duplicate-detection":            "x-dedup-window",
		"x-content-based-deduplication":             "x-dedup-window, which compares the message_id",
		"x-requires-session":                        "x-message-groups",
		"x-fifo-queue":                              "x-message-groups",
		"x-max-delivery-count":                      "x-delivery-limit",
		"x-max-deliver":                             "x-delivery-limit",
		"x-max-receive-count":                       "x-delivery-limit",
		"x-default-message-time-to-live":            "x-message-ttl",
		"x-message-retention-period":                "x-message-ttl",
		"x-visibility-timeout":                      "x-lock-duration",
		"x-ack-wait":                                "x-lock-duration",
		"x-delay-seconds":                           "x-delivery-delay",
		"x-delay":                                   "x-delivery-delay",
		"x-forward-to":                              "x-forward-to-exchange",
		"x-forward-dead-lettered-messages-to":       "x-dead-letter-exchange",
		"x-redrive-policy":                          "x-dead-letter-exchange and x-delivery-limit",
		"x-max-msgs":                                "x-max-length",
		"x-max-bytes":                               "x-max-length-bytes",
		"x-max-size-in-megabytes":                   "x-max-length-bytes",
		"x-discard":                                 "x-overflow",
		"x-num-replicas":                            "x-quorum-initial-group-size",
	}
	exchangesElsewhere = map[string]string{
		"x-message-deduplication": "x-dedup-window of the queues",
		"x-deduplication-header":  "x-dedup-window of the queues, which compares the message_id",
		"x-cache-size":            "x-dedup-window of the queues",
		"x-cache-ttl":             "x-dedup-window of the queues",
		"x-cache-persistence":     "x-dedup-window of the queues",
		"x-recent-history-length": "a queue with x-max-length",
		"x-message-history":       "a queue with x-max-length",
	}
	consumersElsewhere = map[string]string{
		"x-credit":             "basic.qos",
		"x-max-ack-pending":    "basic.qos",
		"x-prefetch-count":     "basic.qos",
		"x-visibility-timeout": "x-lock-duration",
		"x-ack-wait":           "x-lock-duration",
		"x-max-deliver":        "x-delivery-limit of the queue",
		"x-session-id":         "x-group-id",
		"x-message-group-id":   "x-group-id",
		"x-filter":             "a binding to a separate queue",
		"x-selector":           "a binding to a separate queue",
		"x-deliver-policy":     "a separate queue",
	}
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
// if it were to have one. had are the arguments of what is declared again; nil: it is
// new.
func (m *method) checkNames(where string, args, had *fsm.Table) error {
	for _, f := range args.GetFields() {
		name := f.GetName()
		if !fsm.Extension(name) || lookup(had, name) != nil || slices.Contains(m.known, name) && !slices.Contains(m.missing, name) {
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
	if use := m.elsewhere[name]; use != "" {
		return fmt.Sprintf("\"has no effect here, use %s\"", use)
	}
	for _, other := range []*method{&declareQueue, &consume, &declareExchange} {
		if slices.Contains(other.known, name) && !slices.Contains(shared, name) {
			return fmt.Sprintf("\"an argument of %s, not of %s\"", other.name, m.name)
		}
	}
	if near := nearestArgument(name, m.known, maxMisspelling, args); near != "" {
		return fmt.Sprintf("\"unknown; did you mean '%s'?\"", near)
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
			return invalidArgument(name, where, fmt.Sprintf("\"unknown; did you mean '%s'?\"", near))
		}
	}
	return nil
}

const matchArgument = "x-match"
