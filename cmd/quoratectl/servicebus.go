package main

import "os"

func serviceBusVerbs() []verb {
	return []verb{{
		name: "servicebus", about: "manages what programs of Azure Service Bus use",
		verbs: []verb{{
			name: "import", arguments: "FILE", least: 1, maxArguments: 1, timeout: 600, run: importEntities, example: "config.json",
			about: "creates the entities of a file of the emulator that are missing, and changes the others to what it says; lists what differed",
			more:  " It deletes nothing but rules that the file does not name, and can be done again. --node is the listener servicebus.management.listener of a node, --username and --password a rule of the namespace that allows Manage and its key.",
			options: []option{
				{name: "dry-run", about: "only shows what would be done"},
				{name: "emulator-defaults", about: "what the file does not say is as the emulator has it, not as the service"},
			},
		}},
	}}
}

// importedEntity is what has become of an entity.
type importedEntity struct {
	Entity  string   `json:"entity"`
	Outcome string   `json:"outcome"`
	Differs []string `json:"differs"`
}

var importedColumns = columnsOf[importedEntity]("entity outcome differs")

func importEntities(c *call) error {
	text, err := os.ReadFile(c.words[0])
	if err != nil {
		return &exitError{exitData, err}
	}
	ask := struct {
		File     string `json:"file"`
		Emulator bool   `json:"emulator"`
		DryRun   bool   `json:"dry_run"`
	}{string(text), c.given("emulator-defaults"), c.given("dry-run")}
	var done []importedEntity
	if err := c.post("/$import", ask, &done); err != nil {
		return err
	}
	return list(c, "Entities of "+c.words[0]+" ...", importedColumns, nil, done)
}
