package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/tidy/page"
)

// everyVerb calls f for each verb that does something.
func everyVerb(f func(group string, c *cobra.Command)) {
	p := program{name: ownName, getenv: func(string) string { return "" }}
	var walk func(group string, c *cobra.Command)
	walk = func(group string, c *cobra.Command) {
		if !c.HasSubCommands() {
			f(group, c)
		}
		for _, sub := range c.Commands() {
			walk(group, sub)
		}
	}
	for _, c := range p.command().Commands() {
		if c.GroupID != "" && !c.Hidden {
			walk(c.GroupID, c)
		}
	}
}

// shellWords splits a command line as a shell does, as far as examples use it.
func shellWords(line string) (words []string) {
	for i, part := range strings.Split(line, "'") {
		switch {
		case i%2 == 0:
			words = append(words, strings.Fields(part)...)
		default:
			words = append(words, part)
		}
	}
	return words
}

// Each verb has an example that is a command line of that verb, and that is performed: a node that
// agrees with everything lets none of them fail for its words.
func TestExamples(t *testing.T) {
	t.Chdir(t.TempDir())
	if code, _, errs := command("certs", "ensure", "n1"); code != exitOK {
		t.Fatal(errs)
	}
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := "null"
		if strings.HasSuffix(r.URL.Path, "/nodes") {
			answer = `[{"name":"n1","running":true},{"name":"n2","running":true},{"name":"n4","running":true}]`
		}
		_, _ = w.Write([]byte(answer))
	}))
	defer node.Close()
	verbs := 0
	everyVerb(func(_ string, c *cobra.Command) {
		verbs++
		words := shellWords(c.Example)
		name := strings.Fields(c.CommandPath())
		if len(words) < len(name) || strings.Join(words[:len(name)], " ") != c.CommandPath() {
			t.Errorf("%s: the example is %q", c.CommandPath(), c.Example)
			return
		}
		if c.DisableFlagParsing {
			return // it is another program's
		}
		args := words[1:]
		for i, w := range args {
			if w == "--watch" {
				args = append(args[:i:i], args[i+2:]...) // it has no end
				break
			}
		}
		code, _, errs := command(append(args, "-n", node.URL, "-t", "20")...)
		if code == exitUsage || code == exitUnavailable {
			t.Errorf("%s: exit code %d, %s", c.Example, code, errs)
		}
		if code, out, _ := command(append(name[1:], "--help")...); code != exitOK || !strings.Contains(out, strings.TrimSpace(c.Example)) {
			t.Errorf("%s --help: exit code %d, without its example:\n%s", c.CommandPath(), code, out)
		}
	})
	if verbs < 80 {
		t.Errorf("%d verbs", verbs)
	}
}

// Everything that the shell completes is the library's: verbs, options, names of columns.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if code, out, errs := command("completion", shell); code != exitOK || !strings.Contains(out, "quoratectl") {
			t.Errorf("%s: exit code %d, %s", shell, code, errs)
		}
	}
	for words, want := range map[string]string{
		"list_q": "list_queues", "token r": "revoke", "list_queues messages_r": "messages_ready", "set_policy --apply": "--apply-to",
	} {
		fields := append([]string{cobra.ShellCompRequestCmd}, strings.Fields(words)...)
		if _, out, _ := command(fields...); !strings.HasPrefix(out, want) {
			t.Errorf("%q is completed to %q, not %q", words, out, want)
		}
	}
}

// TestReference holds the documentation's list of verbs and options against the program's.
func TestReference(t *testing.T) {
	var b strings.Builder
	last := ""
	everyVerb(func(group string, c *cobra.Command) {
		if group != last {
			fmt.Fprintf(&b, "\n### %s\n\n| verb | |\n|---|---|\n", group)
			last = group
		}
		use := strings.TrimPrefix(c.CommandPath()+strings.TrimPrefix(c.Use, c.Name()), ownName+" ")
		cells := []string{"`" + use + "`", c.Long}
		cells[1] = strings.ReplaceAll(c.Long, "\n\nColumns: ", "<br>Columns: ")
		var options bytes.Buffer
		c.LocalNonPersistentFlags().SetOutput(&options)
		for line := range strings.Lines(c.LocalNonPersistentFlags().FlagUsages()) {
			if name, about, ok := strings.Cut(strings.TrimSpace(line), "   "); ok && !strings.HasPrefix(strings.TrimSpace(line), "-h,") {
				cells[1] += "<br>`" + name + "` " + strings.TrimSpace(about)
			}
		}
		cells[1] += "<br>`" + strings.TrimSpace(c.Example) + "`"
		fmt.Fprintf(&b, "| %s | %s |\n", strings.ReplaceAll(cells[0], "|", "\\|"), strings.ReplaceAll(cells[1], "|", "\\|"))
	})
	page.Hold(t, "../../docs/quoratectl.md", "verbs", b.String()[1:]+"\n")
	p := program{name: ownName, getenv: func(string) string { return "" }}
	page.Hold(t, "../../docs/quoratectl.md", "options", "```\n"+p.command().PersistentFlags().FlagUsages()+"```\n")
	var missing strings.Builder
	missing.WriteString("| verb | instead |\n|---|---|\n")
	for i := 0; i < len(absent); {
		var same []string
		instead := absent[i].instead
		for ; i < len(absent) && absent[i].instead == instead; i++ {
			same = append(same, "`"+absent[i].verb+"`")
		}
		fmt.Fprintf(&missing, "| %s | %s |\n", strings.Join(same, ", "), instead)
	}
	page.Hold(t, "../../docs/quoratectl.md", "absent", missing.String())
}
