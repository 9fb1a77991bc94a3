package main

import (
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// options are those of all verbs. They may come before or after the verb.
type options struct {
	node, user, password string
	caFile               string // PEM file of roots; empty: this machine's
	certFile, keyFile    string // PEM files of a client's certificate; empty: none
	vhost                string
	formatter            string
	quiet, bare          bool
	plain                bool // no names of columns
	timeout              int  // seconds; 0: the verb's
	borrowed             bool // called by a name of RabbitMQ's: --node may be the name of a node
}

// formatters are the forms of output, the first of them unless another is requested.
var formatters = []string{"table", "json", "csv", "pretty_table"}

// define defines the options, with their short names.
func (o *options) define(f *pflag.FlagSet, getenv func(string) string) {
	or := func(name, fallback string) string {
		if v := getenv(name); v != "" {
			return v
		}
		return fallback
	}
	f.StringVarP(&o.node, "node", "n", or("QUORATECTL_NODE", "127.0.0.1:15672"), "`URL` of the node's HTTP API, or HOST:PORT; QUORATECTL_NODE")
	f.StringVarP(&o.user, "username", "u", or("QUORATECTL_USERNAME", "guest"), "`NAME` of the user; QUORATECTL_USERNAME")
	f.StringVar(&o.password, "password", or("QUORATECTL_PASSWORD", "guest"), "the user's `PASSWORD`; QUORATECTL_PASSWORD")
	f.Lookup("password").DefValue = "" // it may be from the environment, and help is shown to others
	f.StringVar(&o.caFile, "ca-file", getenv("QUORATECTL_CA_FILE"), "PEM `FILE` of the roots of the node's certificate; HOST:PORT then means https, port 15671; QUORATECTL_CA_FILE; this machine's")
	f.StringVar(&o.certFile, "cert-file", getenv("QUORATECTL_CERT_FILE"), "PEM `FILE` of a certificate for nodes that ask for one; QUORATECTL_CERT_FILE")
	f.StringVar(&o.keyFile, "key-file", getenv("QUORATECTL_KEY_FILE"), "PEM `FILE` of its key; QUORATECTL_KEY_FILE")
	f.StringVarP(&o.vhost, "vhost", "p", "/", "`VHOST` of what the verb is about")
	f.StringVar(&o.formatter, "formatter", formatters[0], "`FORMAT` of the output: "+alternatives(formatters))
	f.BoolVarP(&o.quiet, "quiet", "q", false, "no title and no progress")
	f.BoolVarP(&o.bare, "silent", "s", false, "neither title nor column names")
	f.BoolVar(&o.plain, "no-table-headers", false, "no column names")
	f.IntVarP(&o.timeout, "timeout", "t", 0, "time limit in `SECONDS`; 60, or the verb's own")
	if o.borrowed {
		f.BoolP("longnames", "l", false, "of no effect")
	}
}

// check refuses values that have no meaning.
func (o *options) check(f *pflag.FlagSet) error {
	switch {
	case !slices.Contains(formatters, o.formatter):
		return usageError("--formatter must be %s, not %q", alternatives(formatters), o.formatter)
	case o.timeout < 0 || o.timeout == 0 && f.Changed("timeout"):
		return usageError("--timeout must be a number of seconds from 1")
	}
	return nil
}

// titled reports whether what is not data is shown, too.
func (o *options) titled() bool {
	return !o.quiet && !o.bare && (o.formatter == "table" || o.formatter == "pretty_table")
}

// option is an option of some verbs only.
type option struct {
	name     string
	about    string // the name of its value stands in backquotes; none: it has no value
	fallback string
}

func (x option) define(f *pflag.FlagSet) {
	if !strings.Contains(x.about, "`") {
		f.Bool(x.name, false, x.about)
		return
	}
	f.String(x.name, x.fallback, x.about)
}

// Options of more than one verb.
var (
	watchOption       = option{name: "watch", about: "shows it again every `SECONDS`, until it is interrupted"}
	queueOption       = option{name: "queue", about: "`NAME` of the queue"}
	messageIDOption   = option{name: "message-id", about: "only messages with the property message_id `ID`"}
	vhostPattern      = option{name: "vhost-pattern", about: "only queues of vhosts whose name matches the regular expression `PATTERN`"}
	queuePattern      = option{name: "queue-pattern", about: "only queues whose name matches the regular expression `PATTERN`"}
	descriptionOption = option{name: "description", about: "`TEXT` about it"}
	tagsOption        = option{name: "tags", about: "`TAGS`, separated by commas"}
	queueTypeOption   = option{name: "default-queue-type", about: "`TYPE` of durable queues that are declared without one: classic or quorum"}
)

// maxWatch is the longest interval of --watch, in seconds.
const maxWatch = 24 * 3600

// watchInterval returns the interval of --watch; 0: it was not given.
func watchInterval(f *pflag.FlagSet) (time.Duration, error) {
	if !f.Changed("watch") {
		return 0, nil
	}
	seconds, err := time.ParseDuration(f.Lookup("watch").Value.String() + "s")
	if err != nil || seconds <= 0 || seconds > maxWatch*time.Second {
		return 0, usageError("--watch must be a number of seconds, up to %d, not %q", maxWatch, f.Lookup("watch").Value)
	}
	return seconds, nil
}

// isTerminal reports whether somebody sees the output as it is written.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
