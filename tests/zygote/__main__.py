import socket
import sys

from tests.zygote import serve

serve(socket.socket(fileno=int(sys.argv[1])))
