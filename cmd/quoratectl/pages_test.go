package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cmd/tidy/page"
)

// TestPages: the command lines that the documentation shows have verbs and options of the program.
func TestPages(t *testing.T) {
	p := program{name: ownName, getenv: func(string) string { return "" }}
	root := p.command()
	root.InitDefaultCompletionCmd()
	lines := 0
	for _, line := range page.Commands(t, "../..", ownName) {
		last := len(line.Words) - 1
		line.Words[last] = strings.TrimRight(line.Words[last], ")") // of <(…)
		if slices.ContainsFunc(line.Words, func(w string) bool { return w == "VERB" || w == "…" }) || line.Words[0] == "help" {
			continue
		}
		lines++
		if why := wrongLine(root, line.Words); why != "" {
			t.Errorf("%s: %s: %s", line.At, strings.Join(line.Words, " "), why)
		}
	}
	if lines < 50 {
		t.Errorf("%d command lines", lines)
	}
	for _, wrong := range []string{"list_nothing", "list_queues --nothing", "-n node token nothing", "token create --for-node n4 --nothing", "delayed list|nothing", "list_queues -y", "list_queues nothing"} {
		if wrongLine(root, strings.Fields(wrong)) == "" {
			t.Errorf("nothing is wrong with %s", wrong)
		}
	}
}

// eitherOf matches verbs or options with a bar between them.
var eitherOf = regexp.MustCompile(`^\[?[a-z-]+(\|[a-z-]+)+$`)

// wrongLine returns what is wrong with a command line; empty if nothing is. Words may be alternatives,
// options may stand in brackets.
func wrongLine(root *cobra.Command, words []string) string {
	for i, word := range words {
		if eitherOf.MatchString(word) {
			for one := range strings.SplitSeq(strings.Trim(word, "["), "|") {
				if why := wrongLine(root, slices.Concat(words[:i], []string{one}, words[i+1:])); why != "" {
					return why
				}
			}
			return ""
		}
	}
	c, rest, err := root.Find(words)
	if err != nil || c.HasSubCommands() {
		return "there is no such verb"
	}
	if c.DisableFlagParsing {
		return "" // the options are another program's
	}
	_, columns, list := strings.Cut(c.Long, "Columns: ")
	c.InheritedFlags() // which makes c know them
	for i := 0; i < len(rest); i++ {
		word := strings.Trim(rest[i], "[]().,:")
		name, _, assigned := strings.Cut(strings.TrimLeft(word, "-"), "=")
		switch {
		case strings.HasPrefix(word, "-") && word != "-":
			flag := c.Flag(name)
			if len(name) == 1 {
				flag = c.Flags().ShorthandLookup(name)
			}
			if flag == nil && !slices.Contains([]string{"h", "help", "version"}, name) {
				return "there is no option " + name
			}
			if flag != nil && flag.NoOptDefVal == "" && !assigned {
				i++ // its value
			}
		case list && word != "" && !slices.Contains(strings.Fields(columns), word):
			return "there is no column " + word
		}
	}
	return ""
}

// Each field of a listing's JSON is a column, and what a pointer that is nil would have is nothing.
func TestColumns(t *testing.T) {
	leader := "n1"
	rows := []api.Queue{{Name: "led", Leader: &leader, QueueStats: &api.QueueStats{Parked: 3}}, {Name: "lost"}}
	found, unknown := queueColumns.named([]string{"name", "leader", "messages_parked", "colour"})
	if !slices.Equal(unknown, []string{"colour"}) {
		t.Errorf("unknown: %q", unknown)
	}
	var cells []string
	for _, row := range rows {
		for _, x := range found {
			cells = append(cells, cell(x.value(row)))
		}
	}
	if want := []string{"led", "n1", "3", "lost", "", ""}; !slices.Equal(cells, want) {
		t.Errorf("%q, want %q", cells, want)
	}
	if text := cell(columnsOf[api.Channel]("connection_details").shown[0].value(api.Channel{})); !strings.HasPrefix(text, `{"name":""`) {
		t.Errorf("a struct is shown as %s", text)
	}
	if names := queueColumns.names(); !slices.Equal(names[:2], []string{"name", "messages"}) || !slices.Contains(names, "next_expiry_at") {
		t.Errorf("%q", names)
	}
}
