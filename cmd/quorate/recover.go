package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/quorate/quorate/cluster/explain"
	"github.com/quorate/quorate/cluster/membership"
)

// recoverCommand makes a stopped node the whole cluster.
func recoverCommand(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("quorate recover", flag.ContinueOnError)
	flags.SetOutput(out)
	dataDir := flags.String("data-dir", "", "data `folder` of the node to keep")
	act := flags.Bool("yes", false, "recover the node, rather than only list what may be lost")
	asJSON := flags.Bool("json", false, "print an object")
	var also list
	flags.Var(&also, "also", "copy of the data `folder` of another surviving node: queues that are further ahead there are taken from it; may be repeated")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dataDir == "" || flags.NArg() > 0 {
		return errors.New("recover: --data-dir DIR is required, and no further arguments")
	}
	rec, err := membership.Recover(membership.RecoverOptions{
		DataDir: *dataDir, Also: also, Act: *act, Exit: os.Exit,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if rec == nil {
		return err
	}
	if *asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return errors.Join(err, e.Encode(rec))
	}
	printRecovery(out, rec)
	return err
}

// printRecovery shows a recovery as a table.
func printRecovery(out io.Writer, r *membership.Recovery) {
	fmt.Fprintf(out, "Recovery of node %s from %s\n", r.Node, r.DataDir)
	fmt.Fprintf(out, "Abandoned nodes: %s\n", strings.Join(r.GivenUp, ", "))
	for _, q := range r.Ended {
		fmt.Fprintf(out, "Lost with its node: %s\n", q)
	}
	fmt.Fprintln(out, strings.Join([]string{
		"vhost", "name", "from", "last_term", "last_index", "ready", "unacknowledged", "scheduled", "dead_letters", "voters", "may_be_lost",
	}, "\t"))
	for _, g := range append([]membership.RecoveredGroup{r.Catalog}, r.Queues...) {
		loss := g.Loss
		if loss == "" {
			loss = "nothing that was confirmed"
		}
		if g.Failed != "" {
			loss += "; its state cannot be computed: " + g.Failed
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", g.VHost, g.Name, g.From, g.Term, g.Last,
			g.Ready, g.Unacknowledged, g.Scheduled, g.DeadLetters, strings.Join(g.Voters, " "), loss)
	}
	if r.Done {
		fmt.Fprintf(out, "Node %s is now the whole cluster. Start it; the others join it with empty data folders. Never start them with their old ones.\n", r.Node)
		return
	}
	fmt.Fprintln(out, "Nothing has been changed. With --yes, node "+r.Node+" becomes the whole cluster, and what is listed above may be lost.")
}

// logCommand reads the log of a stopped node.
func logCommand(args []string, out io.Writer) error {
	if len(args) == 0 || args[0] != "explain" {
		return errors.New("log: expected explain")
	}
	flags := flag.NewFlagSet("quorate log explain", flag.ContinueOnError)
	flags.SetOutput(out)
	dataDir := flags.String("data-dir", "", "`folder` of a node that has stopped")
	vhost := flags.String("vhost", "/", "of the queue")
	queue := flags.String("queue", "", "`name` of the queue")
	var wanted explain.Wanted
	flags.StringVar(&wanted.MessageID, "message-id", "", "property of the messages")
	flags.Uint64Var(&wanted.Number, "message", 0, "`number` of the message in the queue, in place of the property")
	asJSON := flags.Bool("json", false, "print an object")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if *dataDir == "" || *queue == "" || (wanted.MessageID == "") == (wanted.Number == 0) || flags.NArg() > 0 {
		return errors.New("log explain: --data-dir DIR, --queue NAME and either --message-id ID or --message NUMBER are required, and no further arguments")
	}
	x, err := membership.Explain(membership.RecoverOptions{
		DataDir: *dataDir, Exit: os.Exit,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}, *vhost, *queue, wanted)
	if err != nil {
		return err
	}
	if *asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(x)
	}
	x.Print(out)
	return nil
}
