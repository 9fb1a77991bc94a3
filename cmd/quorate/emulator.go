package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
)

// emulatorFile is where the image of the service's emulator looks for its file of entities, and CONFIG_PATH names another.
const emulatorFile = "/ServiceBus_Emulator/ConfigFiles/Config.json"

// emulatorSettings are those of a node in the place of the emulator of Azure Service Bus: it listens where that does, on
// all interfaces, with the key that everybody knows, and heeds the variables of that image. What the node itself is given
// wins, but for a file of settings, which is that of any node.
func emulatorSettings(getenv func(string) string) []string {
	sets := []string{
		"listeners.tcp.default=none", "servicebus.listeners.tcp.default=5672",
		"servicebus.management.listener=" + cmp.Or(getenv("EMULATOR_HTTP_PORT"), "5300"),
		busKeySetting + "=" + devBusKey, "servicebus.config.defaults=emulator",
	}
	file := getenv("CONFIG_PATH")
	if _, err := os.Stat(emulatorFile); file == "" && err == nil {
		file = emulatorFile
	}
	if file != "" {
		sets = append(sets, busFileSetting+"="+file)
	}
	return sets
}

// ownCertificate makes a certificate for management requests in the data folder, unless there is a good one.
func ownCertificate(dataDir string) (files tlsFiles, err error) {
	dir := filepath.Join(dataDir, certsFolder)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return files, err
	}
	host, err := os.Hostname()
	if err != nil {
		return files, err
	}
	files.cert, files.key = filepath.Join(dir, "servicebus.pem"), filepath.Join(dir, "servicebus.key")
	if err := writeLoopbackCertificate(files.cert, files.key, host); err != nil {
		return files, fmt.Errorf("certificate for management requests: %w", err)
	}
	return files, nil
}
