from aspen_mp.cli import main

main()
