// Quorate is the server: one node of a message broker whose queues are
// replicated, or, for trying out, a whole cluster of them on this machine.
//
//	quorate server [--config FILE] [--data-dir DIR] [--node-name NAME] [--service-bus-config FILE] [--service-bus-emulator] [--set KEY=VALUE …]
//	quorate health [--alive] [--config FILE] [--set KEY=VALUE …]
//	quorate config check FILE
//	quorate config show [--effective] [--config FILE] [--set KEY=VALUE …]
//	quorate dev [--nodes 3] [--data-dir DIR] [--base-port 5672] [--service-bus] [--detach] [--pid-file FILE]
//	quorate recover --data-dir DIR [--also DIR …] [--yes] [--json]
//	quorate log explain --data-dir DIR --queue NAME --message-id ID [--vhost VHOST] [--json]
//	quorate version
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/quorate/quorate/cluster"
)

const usage = `usage:
  quorate server [--config FILE] [--data-dir DIR] [--node-name NAME] [--service-bus-config FILE] [--service-bus-emulator] [--set KEY=VALUE ...]
  quorate health [--alive] [--config FILE] [--set KEY=VALUE ...]
  quorate config check FILE
  quorate config show [--effective] [--config FILE] [--set KEY=VALUE ...]
  quorate dev [--nodes 3] [--data-dir DIR] [--base-port 5672] [--service-bus] [--detach] [--pid-file FILE]
  quorate recover --data-dir DIR [--also DIR ...] [--yes] [--json]
  quorate log explain --data-dir DIR --queue NAME (--message-id ID | --message NUMBER) [--vhost VHOST] [--json]
  quorate settings
  quorate version
`

func main() {
	if len(os.Args) > 1 && os.Args[1] == "server" {
		keepMonitorAwake()
	}
	err := keepPrivate()
	if err == nil {
		err = run(os.Args[1:], os.Stdout)
	}
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	default:
		fmt.Fprintln(os.Stderr, "quorate:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(out, usage)
		return nil
	}
	switch command, rest := args[0], args[1:]; command {
	case "server":
		return serverCommand(rest, out)
	case "health":
		return healthCommand(rest, out)
	case "dev":
		return devCommand(rest, out)
	case "settings":
		printSettings(out)
		return nil
	case "config":
		return configCommand(rest, out)
	case "recover":
		return recoverCommand(rest, out)
	case "log":
		return logCommand(rest, out)
	case "version", "-version", "--version":
		fmt.Fprintln(out, cluster.Version)
		return nil
	case "help", "-h", "--help":
		fmt.Fprint(out, usage)
		return nil
	default:
		return fmt.Errorf("unknown command %q\n%s", command, usage)
	}
}
