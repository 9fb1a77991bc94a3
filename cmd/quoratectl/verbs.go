package main

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
)

// call is the execution of a verb.
type call struct {
	context.Context
	client  *client
	options *options
	flags   *pflag.FlagSet // the verb's own options, and those of all
	words   []string       // the verb's arguments
	in      io.Reader
	out     io.Writer
	errOut  io.Writer
	// terminal: somebody sees the output as it is written.
	terminal bool
	// progressEvery is how often progress is shown.
	progressEvery time.Duration
	moved         atomic.Int64 // bytes of a backup
}

// option returns the value of one of the verb's options, and of one that has none whether it was
// given.
func (c *call) option(name string) string { return c.flags.Lookup(name).Value.String() }

func (c *call) given(name string) bool { return c.flags.Changed(name) }

// countIn is the word COUNT among those of a verb, if it is there; otherwise a number that stands for it.
func countIn(words []string, at int, otherwise uint64) (uint64, error) {
	if len(words) <= at {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(words[at], 10, 63)
	if err != nil || n == 0 {
		return 0, usageError("COUNT must be a whole number from 1, not %q", words[at])
	}
	return n, nil
}

// queue is the one that the option names, which is needed.
func (c *call) queue() (string, error) {
	if name := c.option("queue"); name != "" {
		return name, nil
	}
	return "", usageError("--queue is required")
}

func (c *call) get(path string, out any) error { return c.client.do(c, http.MethodGet, path, nil, out) }

func (c *call) put(path string, body any) error {
	return c.client.do(c, http.MethodPut, path, body, nil)
}

func (c *call) post(path string, body, out any) error {
	return c.client.do(c, http.MethodPost, path, body, out)
}

func (c *call) delete(path string) error { return c.client.do(c, http.MethodDelete, path, nil, nil) }

// path joins the segments of an API path. Names may contain anything.
func path(segments ...string) string {
	p := "/api"
	for _, s := range segments {
		p += "/" + url.PathEscape(s)
	}
	return p
}

// Names of RabbitMQ's programs, whose verbs this program has.
const (
	ctlName         = "rabbitmqctl"
	queuesName      = "rabbitmq-queues"
	diagnosticsName = "rabbitmq-diagnostics"
	upgradeName     = "rabbitmq-upgrade"
)

var borrowedNames = []string{ctlName, queuesName, diagnosticsName, upgradeName}

// verb is one thing that the program does. A verb that is followed by another word, which says
// what, has these as verbs, and no more than its name and what it is about.
type verb struct {
	name         string
	alias        string // another spelling of it
	arguments    string // as shown in the usage
	least        int    // number of arguments
	maxArguments int    // -1: any
	about        string // one line, without a full stop
	more         string // sentences for its help
	example      string // what follows its name
	run          func(c *call) error
	options      []option
	columns      []string // it can be asked for
	timeout      int      // seconds; 0: 60
	live         bool     // it shows what changes: it has --watch
	passes       bool     // its options are another program's
	also         []string // programs of RabbitMQ that have it
	twin         bool     // it is another verb under RabbitMQ's name: shown in the help of its programs only
	verbs        []verb
}

// group is a part of the help.
type group struct {
	title string
	verbs []verb
}

// groups is the table of all verbs.
func groups() []group {
	return []group{
		{"Nodes and the cluster", slices.Concat(statusVerbs(), clusterVerbs(), operationVerbs(), memberVerbs())},
		{"Health checks", checkVerbs()},
		{"Vhosts, queues and exchanges", slices.Concat(vhostVerbs(), queueVerbs(), objectVerbs())},
		{"Messages", slices.Concat(tryVerbs(), messageVerbs(), messageFileVerbs(), historyVerbs())},
		{"Connections, channels and consumers", connectionVerbs()},
		{"Users, permissions and limits", slices.Concat(accountVerbs(), limitVerbs())},
		{"Policies and parameters", slices.Concat(policyVerbs(), parameterVerbs())},
		{"Definitions and backups", slices.Concat(definitionVerbs(), migrateVerbs(), backupVerbs())},
		{"Certificates, tokens and data folders", slices.Concat(certsVerbs(), tokenVerbs(), folderVerbs())},
	}
}
