"""What runs inside a Bento: session, scorer, batcher, and the V2 protocol over HTTP and gRPC.

BentoML packages and supervises; the hot path is here. Importing any module of this
package loads neither torch nor mlflow, so that the serving image stays small.
"""
