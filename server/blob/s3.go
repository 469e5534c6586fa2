package blob

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// S3Config configures an S3-compatible store.
type S3Config struct {
	// Endpoint is the host of the store, followed by a port unless it is the default port.
	Endpoint string
	// Bucket must exist. The name of an object is Prefix followed by the hash.
	Bucket, Prefix string
	Region         string
	// AccessKey and SecretKey are read from the environment if empty: AWS_ACCESS_KEY_ID
	// and AWS_SECRET_ACCESS_KEY, or MINIO_ACCESS_KEY and MINIO_SECRET_KEY.
	AccessKey, SecretKey string
	// CAFile is a file with the certificate authorities for the store's certificate. If it is
	// empty, the system's authorities are used. Plaintext selects HTTP instead of HTTPS. Others
	// on the network can then read blobs, but changes are detected by the hash.
	CAFile    string
	Plaintext bool
}

type s3 struct {
	core           minio.Core
	bucket, prefix string
}

var _ Store = (*s3)(nil)

// S3 stores each blob as an object. It checks that the bucket exists and never creates
// one.
func S3(ctx context.Context, c S3Config) (Store, error) {
	if c.Endpoint == "" || c.Bucket == "" {
		return nil, errors.New("blob: an S3 store needs an endpoint and a bucket")
	}
	if (c.AccessKey == "") != (c.SecretKey == "") {
		return nil, errors.New("blob: an access key needs its secret, and a secret its access key")
	}
	transport, err := transport(c)
	if err != nil {
		return nil, fmt.Errorf("blob: %w", err)
	}
	keys := credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.EnvMinio{}})
	if c.AccessKey != "" {
		keys = credentials.NewStaticV4(c.AccessKey, c.SecretKey, "")
	}
	core, err := minio.NewCore(c.Endpoint, &minio.Options{
		Creds: keys, Secure: !c.Plaintext, Region: c.Region, Transport: transport, MaxRetries: 4,
	})
	if err != nil {
		return nil, fmt.Errorf("blob: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	there, err := core.BucketExists(ctx, c.Bucket)
	if err != nil {
		return nil, fmt.Errorf("blob: bucket %s at %s: %w", c.Bucket, c.Endpoint, err)
	}
	if !there {
		return nil, fmt.Errorf("blob: there is no bucket %s at %s", c.Bucket, c.Endpoint)
	}
	return &s3{*core, c.Bucket, c.Prefix}, nil
}

func transport(c S3Config) (*http.Transport, error) {
	t, err := minio.DefaultTransport(!c.Plaintext)
	if err != nil || c.CAFile == "" {
		return t, err
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, err
	}
	if c.Plaintext {
		return nil, errors.New("certificate authorities are set, but the store is accessed without TLS")
	}
	t.TLSClientConfig.RootCAs = x509.NewCertPool()
	if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s contains no certificates", c.CAFile)
	}
	return t, nil
}

// Put implements Store. Like the other methods, it has a timeout, because a store that
// accepts a connection and reads nothing would otherwise block the caller forever.
func (s *s3) Put(ctx context.Context, data []byte) (string, error) {
	hash, err := hashOf(data)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// Send the hash, so that the store refuses data that was changed in transit. By default,
	// the client would sign chunks instead if there is no TLS.
	_, err = s.core.PutObject(ctx, s.bucket, s.prefix+hash, bytes.NewReader(data), int64(len(data)), "", hash,
		minio.PutObjectOptions{ContentType: "application/octet-stream", DisableContentSha256: true})
	if err != nil {
		return "", fmt.Errorf("blob: keeping %s: %w", hash, err)
	}
	return hash, nil
}

func (s *s3) Get(ctx context.Context, hash string) ([]byte, error) {
	if err := checkHash(hash); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	body, info, _, err := s.core.GetObject(ctx, s.bucket, s.prefix+hash, minio.GetObjectOptions{})
	if err != nil {
		if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
			return nil, fmt.Errorf("%w: %s", ErrNotFound, hash)
		}
		return nil, fmt.Errorf("blob: getting %s: %w", hash, err)
	}
	defer body.Close()
	if info.Size < 0 || info.Size > maxSize {
		return nil, fmt.Errorf("blob: %s %w: it has %d bytes", hash, ErrDamaged, info.Size)
	}
	data := make([]byte, info.Size)
	if _, err := io.ReadFull(body, data); err != nil {
		return nil, fmt.Errorf("blob: getting %s: %w", hash, err)
	}
	return verified(hash, data)
}

func (s *s3) Delete(ctx context.Context, hash string) error {
	if err := checkHash(hash); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := s.core.RemoveObject(ctx, s.bucket, s.prefix+hash, minio.RemoveObjectOptions{})
	if err != nil && minio.ToErrorResponse(err).Code != minio.NoSuchKey {
		return fmt.Errorf("blob: deleting %s: %w", hash, err)
	}
	return nil
}
