package main

import (
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"

	"github.com/quorate/quorate/cluster/explain"
	"github.com/quorate/quorate/cluster/membership"
)

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
