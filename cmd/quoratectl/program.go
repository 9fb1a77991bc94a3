// Quoratectl shows the state of a node and its queues, and changes what is common to the cluster.
// It uses the node's HTTP API.
//
//	quoratectl [OPTIONS] VERB [ARGUMENTS]
//
// Called by the name of one of RabbitMQ's programs, such as rabbitmqctl, it takes that program's
// verbs and options.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// Exit codes, those of sysexits.h, as scripts for rabbitmqctl expect them.
const (
	exitOK          = 0
	exitUsage       = 64
	exitData        = 65
	exitNoUser      = 67
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

// errReported is returned if another program has said what is wrong.
var errReported = errors.New("")

// errUnrouted is the reason why a message that was published is nowhere.
var errUnrouted = errors.New("the message reached no queue: no binding matches, or no queue has this name")

func exitCodeOf(err error) int {
	var e *exitError
	if errors.As(err, &e) {
		return e.code
	}
	return exitFailed
}

func main() {
	p := &program{name: filepath.Base(os.Args[0]), getenv: os.Getenv, in: os.Stdin, out: os.Stdout, errOut: os.Stderr, progressEvery: progressEvery}
	os.Exit(p.run(os.Args[1:]))
}

// ownName is the program's own name; any other that is not RabbitMQ's means the same.
const ownName = "quoratectl"

// program is one run of the program.
type program struct {
	name          string // by which it is called
	getenv        func(string) string
	in            io.Reader
	out, errOut   io.Writer
	progressEvery time.Duration
}

// run executes one command line and returns the exit code.
func (p *program) run(args []string) int {
	root := p.command()
	root.SetArgs(append([]string{}, args...)) // nil would be those of the process
	err := root.Execute()
	if err == nil {
		return exitOK
	}
	if !errors.Is(err, errReported) {
		for line := range strings.Lines(fmt.Sprint("Error: ", err)) {
			fmt.Fprintln(p.errOut, printable(strings.TrimSuffix(line, "\n")))
		}
	}
	return exitCodeOf(err)
}

// command makes the command line: a command for each verb, with its options, help and example.
func (p *program) command() *cobra.Command {
	if !slices.Contains(borrowedNames, p.name) {
		p.name = ownName
	}
	o := &options{borrowed: p.name != ownName}
	cobra.EnableCommandSorting = false // the table of verbs has an order
	root := &cobra.Command{
		Use:   p.name,
		Short: "Shows the state of a node and its queues, and manages the cluster.",
		Long: "Shows the state of a node and its queues, and manages the cluster.\n" +
			"It uses the node's HTTP API. Options may stand before or after the verb.",
		Version: api.ProductVersion,
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, words []string) error {
			if len(words) == 0 {
				return c.Help()
			}
			return unknownVerb(c, words[0])
		},
		SilenceErrors: true, SilenceUsage: true,
	}
	root.SetHelpCommand(&cobra.Command{
		Use: "help [VERB]", Short: "help about a verb",
		RunE: func(c *cobra.Command, words []string) error {
			of, rest, err := root.Find(words)
			if err != nil || of == root && len(words) > 0 {
				return unknownVerb(root, words[0])
			}
			if len(rest) > 0 {
				return unknownVerb(of, rest[0])
			}
			return of.Help()
		},
	})
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.errOut)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError("%w", err) })
	o.define(root.PersistentFlags(), p.getenv)
	for _, g := range groups() {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, v := range g.verbs {
			c := p.verb(o, v, p.name)
			c.GroupID = g.title
			c.Hidden = o.borrowed && !slices.Contains(v.also, p.name) || !o.borrowed && v.twin
			root.AddCommand(c)
		}
	}
	for _, x := range absent {
		root.AddCommand(&cobra.Command{
			Use: x.verb, Hidden: true, DisableFlagParsing: true, Args: cobra.ArbitraryArgs,
			RunE: func(*cobra.Command, []string) error {
				return usageError("%s does not exist here: %s", x.verb, x.instead)
			},
		})
	}
	return root
}

// verb makes the command of a verb. path is what stands before it.
func (p *program) verb(o *options, v verb, path string) *cobra.Command {
	path += " " + v.name
	c := &cobra.Command{
		Use: strings.TrimSpace(v.name + " " + v.arguments), Short: v.about, Long: sentence(v.about) + v.more,
		ValidArgs: v.columns, DisableFlagsInUseLine: true, DisableFlagParsing: v.passes,
	}
	if v.alias != "" {
		c.Aliases = []string{v.alias}
	}
	if v.columns != nil {
		c.Long += "\n\nColumns: " + strings.Join(v.columns, " ")
	}
	if len(v.verbs) > 0 {
		c.Use += " VERB"
		c.Args = cobra.ArbitraryArgs
		c.FParseErrWhitelist.UnknownFlags = true // the wrong word is said to be wrong, not its options
		var names []string
		for _, w := range v.verbs {
			c.AddCommand(p.verb(o, w, path))
			names = append(names, w.name)
		}
		c.RunE = func(_ *cobra.Command, words []string) error {
			if len(words) == 0 {
				return usageError("%s is followed by %s", v.name, alternatives(names))
			}
			return usageError("%s is followed by %s, not %q", v.name, alternatives(names), words[0])
		}
		return c
	}
	c.Example = "  " + strings.TrimSpace(path+" "+v.example)
	for _, x := range v.options {
		x.define(c.Flags())
	}
	if v.live {
		watchOption.define(c.Flags())
	}
	c.Args = func(c *cobra.Command, words []string) error {
		if len(words) < v.least || v.maxArguments >= 0 && len(words) > v.maxArguments {
			return usageError("%s takes %s", strings.TrimPrefix(path, p.name+" "), cmp.Or(v.arguments, "no arguments"))
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, words []string) error {
		if v.passes && (slices.Contains(words, "--help") || slices.Contains(words, "-h")) {
			return c.Help()
		}
		return p.perform(o, v, c.Flags(), words)
	}
	return c
}

// perform runs a verb, with --watch until it fails.
func (p *program) perform(o *options, v verb, flags *pflag.FlagSet, words []string) error {
	if err := o.check(flags); err != nil {
		return err
	}
	every, err := watchInterval(flags)
	if err != nil {
		return err
	}
	client, err := newClient(o)
	if client != nil {
		client.warnings = p.errOut
	}
	if err != nil {
		return err
	}
	limit := time.Duration(cmp.Or(o.timeout, v.timeout, 60)) * time.Second
	for {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		err := v.run(&call{Context: ctx, client: client, options: o, flags: flags, words: words, in: p.in, out: p.out, errOut: p.errOut, terminal: isTerminal(p.out), progressEvery: p.progressEvery})
		cancel()
		if err != nil || every == 0 {
			return err
		}
		time.Sleep(every)
		p.separate()
	}
}

// separate prepares the output for the next round of --watch: a terminal is cleared.
func (p *program) separate() {
	if isTerminal(p.out) {
		fmt.Fprint(p.out, "\x1b[H\x1b[2J")
		return
	}
	fmt.Fprintln(p.out)
}

// unknownVerb names verbs that are similar to a word that is none.
func unknownVerb(c *cobra.Command, word string) error {
	c.SuggestionsMinimumDistance = min(3, max(1, len(word)/3)) // a short word resembles many
	if near := c.SuggestionsFor(word); len(near) > 0 {
		return usageError("unknown verb %q; similar: %s", word, strings.Join(near, " "))
	}
	return usageError("unknown verb %q; see %s help", word, c.Name())
}

// sentence makes a sentence of an explanation.
func sentence(about string) string {
	if about == "" {
		return ""
	}
	return strings.ToUpper(about[:1]) + about[1:] + "."
}

// alternatives joins words as "a, b or c".
func alternatives(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
