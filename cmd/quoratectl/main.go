// Quoratectl shows the state of a node and its queues, and changes what is common to the cluster.
// It uses the node's HTTP API.
//
//	quoratectl [OPTIONS] VERB [ARGUMENTS]
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// Exit codes, as scripts for rabbitmqctl expect them.
const (
	exitOK          = 0
	exitUsage       = 64
	exitData        = 65
	exitUnavailable = 69
	exitFailed      = 70
	exitTemporary   = 75
	exitDenied      = 77
)

// exitError is an error that determines the exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// options may come before or after the verb.
type options struct {
	node, user, password string
	caFile               string // PEM file of roots; empty: this machine's
	certFile, keyFile    string // PEM files of a client's certificate; empty: none
	vhost                string
	formatter            string
	quiet, bare          bool
	version              bool // print this program's version
	timeout              int

	// Options of some verbs only.
	priority, applyTo, description, tags string
	vhostPattern, queuePattern           string
	exchange, queue, id, match           string
	dir, days, algorithm                 string
	ttl, forNode, within, unit           string
	messageID, message, reason, since    string
	rate                                 string
	given                                []string // names of the options given
}

// verbOptions are the options that only some verbs take.
var verbOptions = []string{"priority", "apply-to", "description", "tags", "vhost-pattern", "queue-pattern", "exchange", "queue", "id", "match", "dir", "days", "algorithm", "ttl", "for-node", "within", "unit", "message-id", "message", "reason", "since", "rate"}

func main() {
	if len(os.Args) > 1 && (os.Args[1] == "recover" || os.Args[1] == "log") {
		os.Exit(onDataFolder(os.Args[1:]))
	}
	os.Exit(run(os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
}

// run executes one command line and returns the exit code.
func run(args []string, getenv func(string) string, in io.Reader, out, errOut io.Writer) int {
	o := &options{}
	words, err := parse(o, args, getenv)
	switch {
	case err == nil && o.version:
		fmt.Fprintln(out, api.ProductVersion)
		return exitOK
	case errors.Is(err, flag.ErrHelp) || err == nil && (len(words) == 0 || words[0] == "help"):
		fmt.Fprint(out, help(words))
		return exitOK
	case err != nil:
	default:
		err = perform(o, words, in, out)
	}
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(errOut, "Error:", err)
	return exitCodeOf(err)
}

func exitCodeOf(err error) int {
	var e *exitError
	if errors.As(err, &e) {
		return e.code
	}
	return exitFailed
}

func perform(o *options, words []string, in io.Reader, out io.Writer) error {
	i := slices.IndexFunc(verbs, func(v verb) bool { return v.name == words[0] })
	if i < 0 {
		return usageError("unknown verb %q; see quoratectl help", words[0])
	}
	v, words := verbs[i], words[1:]
	if len(words) < v.least || v.maxArguments >= 0 && len(words) > v.maxArguments {
		return usageError("%s takes %s", v.name, orNothing(v.arguments))
	}
	for _, name := range o.given {
		if !slices.Contains(v.options, name) {
			return usageError("%s has no option --%s", v.name, name)
		}
	}
	if o.timeout == 0 {
		o.timeout = cmp.Or(v.timeout, 60)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(o.timeout)*time.Second)
	defer cancel()
	c, err := newClient(o)
	if err != nil {
		return err
	}
	return v.run(&call{Context: ctx, client: c, options: o, words: words, in: in, out: out})
}

func orNothing(arguments string) string {
	if arguments == "" {
		return "no arguments"
	}
	return arguments
}

// flags defines the options, with their short names.
func flags(o *options, getenv func(string) string) *flag.FlagSet {
	or := func(name, fallback string) string {
		if v := getenv(name); v != "" {
			return v
		}
		return fallback
	}
	f := flag.NewFlagSet("quoratectl", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	text := func(to *string, fallback string, names ...string) {
		for _, name := range names {
			f.StringVar(to, name, fallback, "")
		}
	}
	text(&o.node, or("QUORATECTL_NODE", "127.0.0.1:15672"), "n", "node")
	text(&o.user, or("QUORATECTL_USERNAME", "guest"), "u", "username")
	text(&o.password, or("QUORATECTL_PASSWORD", "guest"), "password")
	text(&o.caFile, getenv("QUORATECTL_CA_FILE"), "ca-file")
	text(&o.certFile, getenv("QUORATECTL_CERT_FILE"), "cert-file")
	text(&o.keyFile, getenv("QUORATECTL_KEY_FILE"), "key-file")
	text(&o.vhost, "/", "p", "vhost")
	for _, name := range []string{"q", "quiet"} {
		f.BoolVar(&o.quiet, name, false, "")
	}
	for _, name := range []string{"s", "silent"} {
		f.BoolVar(&o.bare, name, false, "")
	}
	for _, name := range []string{"t", "timeout"} {
		f.IntVar(&o.timeout, name, 0, "")
	}
	f.BoolVar(&o.version, "version", false, "")
	text(&o.formatter, "table", "formatter")
	text(&o.priority, "0", "priority")
	text(&o.applyTo, "all", "apply-to")
	text(&o.description, "", "description")
	text(&o.tags, "", "tags")
	text(&o.exchange, "", "exchange")
	text(&o.queue, "", "queue")
	text(&o.id, "", "id")
	text(&o.match, "", "match")
	text(&o.dir, "certs", "dir")
	text(&o.days, "", "days")
	text(&o.algorithm, "", "algorithm")
	text(&o.ttl, "10m", "ttl")
	text(&o.within, "", "within")
	text(&o.unit, "", "unit")
	text(&o.messageID, "", "message-id")
	text(&o.message, "", "message")
	text(&o.reason, "", "reason")
	text(&o.since, "", "since")
	text(&o.rate, "", "rate")
	text(&o.forNode, "", "for-node")
	text(&o.vhostPattern, "", "vhost-pattern")
	text(&o.queuePattern, "", "queue-pattern")
	return f
}

// parse reads options anywhere before a word --, and returns the other words.
func parse(o *options, args []string, getenv func(string) string) (words []string, err error) {
	f := flags(o, getenv)
	var plain []string
	if i := slices.Index(args, "--"); i >= 0 {
		args, plain = args[:i], args[i+1:]
	}
	for len(args) > 0 {
		if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
			return append([]string{"help"}, words...), err
		} else if err != nil {
			return nil, usageError("%w", err)
		}
		if f.NArg() == 0 {
			break
		}
		words, args = append(words, f.Arg(0)), f.Args()[1:]
	}
	words = append(words, plain...)
	f.Visit(func(x *flag.Flag) {
		if slices.Contains(verbOptions, x.Name) {
			o.given = append(o.given, x.Name)
		}
	})
	switch {
	case o.formatter != "table" && o.formatter != "json":
		return nil, usageError("--formatter is table or json, not %q", o.formatter)
	case o.timeout < 0 || o.timeout == 0 && given(f, "t", "timeout"):
		return nil, usageError("--timeout is a number of seconds from 1")
	}
	return words, nil
}

// given reports whether one of the options was given.
func given(f *flag.FlagSet, names ...string) (yes bool) {
	f.Visit(func(x *flag.Flag) { yes = yes || slices.Contains(names, x.Name) })
	return yes
}

// help is the text about a verb, the second word, or about all of them.
func help(words []string) string {
	if len(words) < 2 {
		return usage()
	}
	i := slices.IndexFunc(verbs, func(v verb) bool { return v.name == words[1] })
	if i < 0 {
		return usage()
	}
	v := verbs[i]
	text := fmt.Sprintf("usage: %s\n\n%s\n", strings.TrimSpace("quoratectl [OPTIONS] "+v.name+" "+v.arguments), v.about)
	for _, name := range v.options {
		text += "  --" + name + "\n"
	}
	return text + "\nOptions of all verbs: quoratectl help\n"
}

func usage() string {
	var b strings.Builder
	b.WriteString(`usage: quoratectl [OPTIONS] VERB [ARGUMENTS]

options, before or after the verb:
  -n, --node URL         URL of the node's HTTP API, or HOST:PORT; QUORATECTL_NODE; 127.0.0.1:15672
  -u, --username NAME    QUORATECTL_USERNAME; guest
  --password PASSWORD    QUORATECTL_PASSWORD; guest
  --ca-file FILE         roots of the node's certificate, PEM; HOST:PORT then means https, port 15671; QUORATECTL_CA_FILE; this machine's
  --cert-file FILE       certificate for nodes that ask for one, PEM, with --key-file FILE; QUORATECTL_CERT_FILE, QUORATECTL_KEY_FILE
  -p, --vhost VHOST      /
  --formatter FORMAT     table or json
  -q, --quiet            no title
  -s, --silent           neither title nor column names
  -t, --timeout SECONDS  60, or the verb's default
  --help                 help for the verb, or for all
  --version              version of this program

verbs:
  recover --data-dir DIR [--also DIR ...] [--yes] [--json] turns a stopped node into the whole cluster when a majority is lost for good; without --yes it only shows what may be lost
  log explain --data-dir DIR --queue NAME (--message-id ID | --message NUMBER) [--vhost VHOST] [--json] is explain for the data folder of a node that has stopped
`)
	for _, v := range verbs {
		fmt.Fprintf(&b, "  %-44s %s\n", strings.TrimSpace(v.name+" "+v.arguments), v.about)
	}
	return b.String()
}
