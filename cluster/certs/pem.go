package certs

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Types of PEM blocks.
const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY"
)

// encode writes certificates one after the other.
func encode(all ...*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range all {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: c.Raw}))
	}
	return b.Bytes()
}

// encodeKey writes a key as PKCS #8.
func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der}), nil
}

// decode reads the certificates of a PEM text, at least one.
func decode(text []byte) (all []*x509.Certificate, err error) {
	for {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			break
		}
		if b.Type != certificateBlock {
			continue
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("contains no certificate")
	}
	return all, nil
}

// decodeKey reads a key that can sign.
func decodeKey(text []byte) (crypto.Signer, error) {
	b, _ := pem.Decode(text)
	if b == nil {
		return nil, errors.New("contains no key")
	}
	any, err := x509.ParsePKCS8PrivateKey(b.Bytes)
	if err != nil {
		if any, err = x509.ParseECPrivateKey(b.Bytes); err != nil {
			return nil, errors.New("contains no readable key")
		}
	}
	key, ok := any.(crypto.Signer)
	if !ok {
		return nil, errors.New("the key cannot sign")
	}
	return key, nil
}

// readCertificates reads the certificates of a file.
func readCertificates(path string) ([]*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

// readKey reads a key from a file that other users of the host cannot read.
func readKey(path string) (crypto.Signer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return nil, fmt.Errorf("%s: the key is readable by every user of this host (mode %04o); use chmod 600", path, mode)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	key, err := decodeKey(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// create writes a new file, readable by its owner only.
func create(path string, text []byte) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s: %w", path, os.ErrExist)
	}
	return WritePrivate(path, text)
}

// WritePrivate writes a file durably, readable by its owner only. Concurrent readers see either the old
// or the new text.
func WritePrivate(path string, text []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
