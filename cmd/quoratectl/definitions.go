package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

func definitionVerbs() []verb {
	return []verb{
		{name: "export_definitions", arguments: "FILE", least: 1, maxArguments: 1, about: "writes all definitions to a file, or to - (the output)", more: " Only its owner can read the file: the hashes of passwords are among the definitions.", run: exportDefinitions, also: []string{ctlName}, example: "definitions.json"},
		{name: "import_definitions", arguments: "[FILE]", maxArguments: 1, about: "imports definitions from a file or the input, including those of RabbitMQ, and lists what was not imported", run: importDefinitions, also: []string{ctlName}, timeout: 600, example: "definitions.json"},
	}
}

func exportDefinitions(c *call) error {
	var raw json.RawMessage
	if err := c.get(path("definitions"), &raw); err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.Indent(&text, raw, "", "  "); err != nil {
		return err
	}
	text.WriteByte('\n')
	if c.words[0] == "-" {
		_, err := c.out.Write(text.Bytes())
		return err
	}
	return writePrivate(c.words[0], text.Bytes())
}

// writePrivate writes a file that only its owner can read, and replaces one that exists.
func writePrivate(name string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".definitions-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

var skippedColumns = columnsOf[api.Skipped]("section vhost name reason")

// notes writes what definitions that were taken do otherwise than where they are from.
func (c *call) notes(notes []api.Skipped) {
	for _, n := range notes {
		fmt.Fprintf(c.errOut, "Warning: %s, %s in vhost %s: %s\n", n.Section, n.Name, n.VHost, n.Reason)
	}
}

// importDefinitions fails if a part was not taken.
func importDefinitions(c *call) error {
	file := ""
	if len(c.words) > 0 && c.words[0] != "-" {
		file = c.words[0]
	}
	raw, err := readDefinitions(c, file)
	if err != nil {
		return err
	}
	defer c.progress(importProgress(c))()
	var report api.Imported
	status, err := c.client.ask(c, http.MethodPost, partly, raw, &report)
	if err != nil || status == http.StatusNoContent {
		return err
	}
	c.notes(report.Notes)
	if report.SkippedTotal == 0 {
		return nil
	}
	if err := list(c, "Definitions that were not imported ...", skippedColumns, nil, report.Skipped); err != nil {
		return err
	}
	return &exitError{exitData, fmt.Errorf("%d definitions were not imported, the others were", report.SkippedTotal)}
}

// partly is where definitions go of which as many are taken as can be; what is not is in the answer.
var partly = path("definitions") + "?partial=true"

// readDefinitions reads definitions from a file, or if it has no name from the input.
func readDefinitions(c *call, file string) (raw json.RawMessage, err error) {
	if file == "" {
		raw, err = io.ReadAll(c.in)
	} else {
		raw, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, &exitError{exitData, err}
	}
	raw = bytes.TrimPrefix(raw, []byte("\ufeff")) // a byte order mark
	if !json.Valid(raw) {
		return nil, &exitError{exitData, fmt.Errorf("the definitions are not JSON")}
	}
	return raw, nil
}
